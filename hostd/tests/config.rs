//! The configuration's layers, refusals and default file.

#![allow(clippy::unwrap_used)]

use hostd::api::{Limits, Method};
use hostd::config::{AccessRule, Config, ConfigError, LogFormat, SettingOrigin};
use settings::Settings as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A folder with a configuration file in it.
struct Etc(tempfile::TempDir);

impl Etc {
    fn new(text: &str) -> Etc {
        let etc = Etc(tempfile::tempdir().unwrap());
        write(&etc.file(), text);
        etc
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("hostd.toml")
    }

    fn drop_in(&self, name: &str, text: &str) {
        let folder = self.0.path().join("conf.d");
        std::fs::create_dir_all(&folder).unwrap();
        set_mode(&folder, 0o755);
        write(&folder.join(name), text);
    }

    fn load(&self) -> Result<Config, ConfigError> {
        load(Some(&self.file()), &[], &[])
    }
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// Write a file that only its owner can change, whatever the umask is.
fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    set_mode(path, 0o644);
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn load(file: Option<&Path>, env: &[(&str, &str)], sets: &[(&str, &str)]) -> Result<Config, ConfigError> {
    settings::load(file, pairs(env).into_iter(), &pairs(sets))
}

/// The one problem of a file with this text, without the folder's name.
fn problem(text: &str) -> String {
    let etc = Etc::new(text);
    let error = etc.load().expect_err("a refusal");
    assert_eq!(error.problems.len(), 1, "{error}");
    error.to_string().replace(&format!("{}/", etc.0.path().display()), "")
}

fn env_problem(name: &str, value: &str) -> String {
    load(Some(&Etc::new("").file()), &[(name, value)], &[]).expect_err("a refusal").to_string()
}

fn set_problem(key: &str, value: &str) -> String {
    load(Some(&Etc::new("").file()), &[], &[(key, value)]).expect_err("a refusal").to_string()
}

#[test]
fn later_layers_win() {
    let etc = Etc::new("[pool]\nprefix = \"one\"\nfirst_slot = 2\nlast_slot = 3\n[log]\nfilter = \"warn\"\n");
    etc.drop_in("20-b.toml", "[pool]\nprefix = \"three\"\n");
    etc.drop_in("10-a.toml", "[pool]\nprefix = \"two\"\nlast_slot = 4\n");
    etc.drop_in("ignored.txt", "not TOML at all");
    let config = etc.load().unwrap();
    assert_eq!(config.pool.prefix, "three");
    assert_eq!((config.pool.first_slot, config.pool.last_slot), (2, 4));
    assert_eq!(config.log.filter, "warn");

    let env = [("HOSTD_POOL_PREFIX", "four"), ("HOSTD_LOG_FORMAT", "json"), ("PATH", "/bin")];
    let config = load(Some(&etc.file()), &env, &[]).unwrap();
    assert_eq!((config.pool.prefix.as_str(), config.log.format), ("four", LogFormat::Json));

    let config = load(Some(&etc.file()), &env, &[("pool.prefix", "five"), ("pool.last_slot", "9")]).unwrap();
    assert_eq!((config.pool.prefix.as_str(), config.pool.last_slot), ("five", 9));
    assert_eq!(config.log.format, LogFormat::Json, "the variable stays if no flag replaces it");
}

#[test]
fn variables_set_every_kind_of_key() {
    let env = [
        ("HOSTD_CLONE_LIMITS_MEMORY_BYTES", "1073741824"),
        ("HOSTD_PATHS_SOCKET", "/run/other/hostd.sock"),
        ("HOSTD_POOL_SUBNET6", "fd00:87::/64"),
        ("HOSTD_METRICS_LISTEN", "[::1]:9469"),
        ("HOSTD_ACCESS", r#"[{users = ["7"], operations = ["browser-clone-reap"]}]"#),
        ("HOSTD_SOCKET", "/the/clients/own.sock"),
    ];
    let config = load(Some(&Etc::new("").file()), &env, &[]).unwrap();
    assert_eq!(config.clone_limits.memory_bytes, 1 << 30);
    assert_eq!(config.paths.socket, Path::new("/run/other/hostd.sock"));
    assert_eq!(config.pool.subnet6.unwrap().to_string(), "fd00:87::/64");
    assert_eq!(config.metrics.listen.unwrap().to_string(), "[::1]:9469");
    assert_eq!(config.access[0].users, ["7"]);
    assert_eq!(config.access[0].operations, [Method::Reap]);
}

#[test]
fn empty_text_unsets_an_optional_key() {
    let etc = Etc::new("[metrics]\nlisten = \"127.0.0.1:9469\"\n");
    assert!(etc.load().unwrap().metrics.listen.is_some());
    let config = load(Some(&etc.file()), &[("HOSTD_METRICS_LISTEN", "")], &[]).unwrap();
    assert_eq!(config.metrics.listen, None);
}

#[test]
fn a_named_file_must_exist_and_the_default_file_need_not() {
    let missing = Path::new("/nonexistent/hostd.toml");
    let error = load(Some(missing), &[], &[]).unwrap_err().to_string();
    assert!(error.starts_with("/nonexistent/hostd.toml: cannot be read: No such file"), "{error}");
    if !Config::default_file().exists() {
        assert_eq!(load(None, &[], &[]).unwrap(), Config::default());
    }
}

/// Every file and folder that others can write: each is refused, and the message names it and its mode.
#[test]
fn files_and_folders_that_others_can_write_are_refused() {
    let etc = Etc::new("[pool]\nprefix = \"a\"\n");
    etc.drop_in("1.toml", "[pool]\nprefix = \"b\"\n");
    let folder = etc.0.path().canonicalize().unwrap();
    assert_eq!(etc.load().unwrap().pool.prefix, "b");
    for (path, before) in [
        (folder.clone(), 0o700),
        (folder.join("hostd.toml"), 0o644),
        (folder.join("conf.d"), 0o755),
        (folder.join("conf.d/1.toml"), 0o644),
    ] {
        for bits in [0o020, 0o002, 0o022] {
            set_mode(&path, before | bits);
            let error = etc.load().unwrap_err().to_string();
            let shown = path.display();
            let mode = before | bits;
            assert!(
                error.contains(&format!("is refused: {shown} can be written by others (owner ")),
                "{error}"
            );
            assert!(error.contains(&format!(", mode {mode:04o}): chmod go-w {shown}")), "{error}");
        }
        set_mode(&path, before);
        assert_eq!(etc.load().unwrap().pool.prefix, "b");
    }
    // Nobody may add a file to the drop-in folder, not even to a sticky one.
    set_mode(&folder.join("conf.d"), 0o1777);
    assert!(etc.load().is_err());
    set_mode(&folder.join("conf.d"), 0o755);
    // In a sticky parent such as /tmp others cannot replace the file.
    set_mode(&folder, 0o1777);
    assert_eq!(etc.load().unwrap().pool.prefix, "b");
}

#[test]
fn a_linked_file_is_trusted_if_link_and_target_are() {
    let (etc, other) = (Etc::new("[pool]\nprefix = \"a\"\n"), tempfile::tempdir().unwrap());
    let link = other.path().join("hostd.toml");
    std::os::unix::fs::symlink(etc.file(), &link).unwrap();
    assert_eq!(load(Some(&link), &[], &[]).unwrap().pool.prefix, "a");
    set_mode(other.path(), 0o777);
    assert!(load(Some(&link), &[], &[]).unwrap_err().to_string().contains("can be written by others"));
    set_mode(other.path(), 0o700);
    set_mode(etc.0.path(), 0o777);
    assert!(load(Some(&link), &[], &[]).unwrap_err().to_string().contains("can be written by others"));
}

#[test]
fn a_file_of_another_user_is_refused() {
    let etc = Etc::new("");
    if !nix::unistd::geteuid().is_root() {
        // An ordinary user cannot give a file away; its own files are accepted, which the other tests show.
        assert!(nix::unistd::chown(&etc.file(), Some(12345.into()), None).is_err());
        return;
    }
    nix::unistd::chown(&etc.file(), Some(12345.into()), None).unwrap();
    let error = etc.load().unwrap_err().to_string();
    assert!(
        error.contains("hostd.toml belongs to user 12345 (owner 12345, mode 0644): chown root "),
        "{error}"
    );
}

/// Folders that the daemon writes to: each is refused if others can write to it.
#[test]
fn state_folders_that_others_can_write_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path().canonicalize().unwrap();
    let mut config = Config::default();
    config.paths.state = home.join("state");
    config.paths.socket = home.join("run/hostd.sock");
    config.paths.audit = home.join("log/audit.log");
    config.pool.clones_dir = home.join("clones");
    config.linux.templates = home.join("templates");
    config.linux.browserd = home.join("browserd");
    config.freebsd.bastille_prefix = home.join("bastille");
    config.freebsd.console_logs = home.join("console");
    config.check_trust().expect("folders that do not exist yet");
    let mut folders = vec![("paths.state", "state"), ("paths.socket", "run"), ("paths.audit", "log")];
    folders.extend([("pool.clones_dir", "clones")]);
    match cfg!(target_os = "linux") {
        true => folders.push(("linux.templates", "templates")),
        false => {
            folders.extend([("freebsd.bastille_prefix", "bastille"), ("freebsd.console_logs", "console")])
        }
    }
    for (key, name) in folders {
        let folder = home.join(name);
        std::fs::create_dir(&folder).unwrap();
        set_mode(&folder, 0o755);
        config.check_trust().unwrap();
        for mode in [0o775, 0o757, 0o1777] {
            set_mode(&folder, mode);
            let error = config.check_trust().unwrap_err();
            assert_eq!(error.problems.len(), 1, "{error}");
            assert_eq!(error.problems[0].key, key);
            assert!(
                error.to_string().contains(&format!("mode {mode:04o}): chmod go-w {}", folder.display()))
            );
        }
        set_mode(&folder, 0o711);
    }
    if cfg!(target_os = "linux") {
        write(&config.linux.browserd, "");
        set_mode(&config.linux.browserd, 0o775);
        assert_eq!(config.check_trust().unwrap_err().problems[0].key, "linux.browserd");
        set_mode(&config.linux.browserd, 0o755);
    }
    config.check_trust().unwrap();
    // Only the audit log may be below a folder that a group can write: Ubuntu's /var/log.
    set_mode(&home, 0o770);
    let error = config.check_trust().unwrap_err();
    assert!(error.problems.iter().all(|problem| problem.key != "paths.audit"), "{error}");
    assert!(error.problems.iter().any(|problem| problem.key == "paths.state"), "{error}");
}

#[test]
fn unknown_keys_are_refused_with_the_nearest_name() {
    assert_eq!(
        problem("# one\n[pool]\n\nprefx = \"a\"\n"),
        "hostd.toml:4: pool.prefx: unknown key; did you mean pool.prefix?"
    );
    assert_eq!(problem("[pol]\n"), "hostd.toml:1: pol: unknown section; did you mean pool?");
    assert_eq!(
        problem("[pool]\nmax_clones = 3\n"),
        "hostd.toml:2: pool.max_clones: unknown key; did you mean server.max_clones?"
    );
    assert_eq!(
        problem("reap_cap = 3\n"),
        "hostd.toml:1: reap_cap: unknown section; the key reap_cap belongs to section lifecycle"
    );
    assert_eq!(
        problem("[[access]]\nusers = [\"a\"]\noperator = true\n[[access]]\nuser = [\"b\"]\n"),
        "hostd.toml:5: access.user: unknown key; did you mean access.users?"
    );
    assert_eq!(
        env_problem("HOSTD_POOL_PREFX", "a"),
        "HOSTD_POOL_PREFX: is not a setting of hostd; did you mean HOSTD_POOL_PREFIX?"
    );
    assert_eq!(
        env_problem("HOSTD_SOKET", "a"),
        "HOSTD_SOKET: is not a setting of hostd; did you mean HOSTD_SOCKET?"
    );
    assert_eq!(
        set_problem("server.max_clone", "3"),
        "--set: server.max_clone: unknown key; did you mean server.max_clones?"
    );
    assert_eq!(
        set_problem("access", "[{user = [\"b\"]}]"),
        "--set: access.user: unknown key; did you mean access.users?"
    );
}

#[test]
fn wrong_types_are_refused_with_what_was_expected() {
    assert_eq!(
        problem("[pool]\nfirst_slot = \"one\"\n"),
        "hostd.toml:2: pool.first_slot: invalid type: string \"one\", expected a whole number from 1 to 999"
    );
    assert_eq!(
        problem("[log]\nformat = \"xml\"\n"),
        "hostd.toml:2: log.format: unknown variant `xml`, expected `human` or `json`"
    );
    assert!(problem("[pool]\nsubnet = \"10.0.0.0\"\n").starts_with("hostd.toml:2: pool.subnet: invalid"));
    assert!(
        problem("[[access]]\nusers = [\"a\"]\noperations = [\"browser-clone-pause\"]\n")
            .starts_with("hostd.toml:3: access.operations: unknown variant `browser-clone-pause`")
    );
    assert_eq!(
        problem("[clone_limits]\ndisk_bytes = 9223372036854775808\n"),
        "hostd.toml:2: clone_limits.disk_bytes: invalid type: string \"9223372036854775808\", expected a whole number \
         from 16777216 to 1125899906842624"
    );
    assert!(problem("[egress]\ncontrol_users = [18446744073709551615]\n").contains("egress.control_users: "));
    assert_eq!(problem("pool = 3\n"), "hostd.toml:1: pool: expected a section: [pool]");
    assert_eq!(problem("access = 3\n"), "hostd.toml:1: access: expected a list of tables: [[access]]");
    assert!(problem("[pool\n").starts_with("hostd.toml:1: is not TOML: "), "{}", problem("[pool\n"));
    assert!(
        problem("[pool]\nprefix = \"a\"\nprefix = \"b\"\n")
            .contains("hostd.toml:3: is not TOML: duplicate key")
    );
    assert!(env_problem("HOSTD_POOL_FIRST_SLOT", "-1").contains("expected a whole number from 1 to 999"));
    assert!(env_problem("HOSTD_ACCESS", "root").contains("HOSTD_ACCESS: access: "));
    assert!(set_problem("pool", "3").contains("name a key of it, such as pool.prefix"));
    assert!(set_problem("access.users", "[]").contains("is set as a whole"));
}

#[test]
fn a_check_names_the_layer_that_set_the_value() {
    assert_eq!(
        problem("[lifecycle]\nreap_cap = 0\n"),
        "hostd.toml:2: lifecycle.reap_cap: 0 is too small: at least 1"
    );
    assert!(
        env_problem("HOSTD_METRICS_LISTEN", "0.0.0.0:9469")
            .starts_with("HOSTD_METRICS_LISTEN: metrics.listen: 0.0.0.0:9469 is not loopback")
    );
    assert!(set_problem("pool.prefix", "Bad").starts_with("--set: pool.prefix: \"Bad\" cannot begin a name"));
    let etc = Etc::new("[pool]\nprefix = \"a\"\n\n[[access]]\nusers = [\"root\"]\n");
    let error = etc.load().unwrap_err();
    assert_eq!(error.problems[0].origin, SettingOrigin::File(etc.file(), 4));
}

#[test]
fn all_problems_are_reported_at_once() {
    let etc = Etc::new("[pool]\nprefx = \"a\"\nfirst_slot = true\n[sever]\nx = 1\n");
    let error = load(Some(&etc.file()), &[("HOSTD_X", "1")], &[("log.format", "xml")]).unwrap_err();
    assert_eq!(error.problems.len(), 5, "{error}");
    assert_eq!(error.to_string().lines().count(), 5);
}

/// Each case sets one wrong value; the check must name its key.
#[test]
fn every_rule_of_the_check_is_enforced() {
    type Change = fn(&mut Config);
    let long = |config: &mut Config| config.paths.socket = format!("/{}", "x".repeat(100)).into();
    let cases: &[(&str, Change)] = &[
        ("paths.socket", long),
        ("paths.socket", |c| c.paths.socket = "hostd.sock".into()),
        ("paths.state", |c| c.paths.state = "/".into()),
        ("paths.state", |c| c.paths.state = "/var/../etc".into()),
        ("paths.audit", |c| c.paths.audit = "/var/log/a\nb".into()),
        ("pool.clones_dir", |c| c.pool.clones_dir = "clones".into()),
        ("pool.prefix", |c| c.pool.prefix = String::new()),
        ("pool.last_slot", |c| c.pool.last_slot = 0),
        ("host.template", |c| c.host.template = "../browser".into()),
        ("host.template", |c| c.host.template = String::new()),
        ("lifecycle.default_deadline_seconds", |c| c.lifecycle.default_deadline_seconds = 0),
        ("lifecycle.default_deadline_seconds", |c| c.lifecycle.max_deadline_seconds = 60),
        ("lifecycle.max_deadline_seconds", |c| c.lifecycle.max_deadline_seconds = u64::MAX),
        ("lifecycle.step_timeout_seconds", |c| c.lifecycle.step_timeout_seconds = 0),
        ("lifecycle.reap_cap", |c| c.lifecycle.reap_cap = 0),
        ("lifecycle.reconcile_interval_ms", |c| c.lifecycle.reconcile_interval_ms = 0),
        ("lifecycle.shutdown_grace_seconds", |c| c.lifecycle.shutdown_grace_seconds = 3601),
        ("clone_limits.memory_bytes", |c| c.clone_limits.memory_bytes = 0),
        ("server.max_clones", |c| c.server.max_clones = 0),
        ("server.create_burst", |c| c.server.create_burst = 0),
        ("server.max_line_bytes", |c| c.server.max_line_bytes = 10),
        ("log.filter", |c| c.log.filter = "hostd=loud".into()),
        ("metrics.listen", |c| c.metrics.listen = Some("10.0.0.1:9469".parse().unwrap())),
        ("metrics.listen", |c| c.metrics.listen = Some("127.0.0.1:0".parse().unwrap())),
        ("egress.browserd_port", |c| c.egress.browserd_port = 1023),
        ("egress.control_users", |c| c.egress.control_users.push(u32::MAX)),
        ("server.max_operations_per_user", |c| c.server.max_operations_per_user = 0),
        ("server.reap_burst", |c| c.server.reap_burst = 0),
        ("clone_limits.disk_bytes", |c| c.clone_limits.disk_bytes = 0),
        ("clone_limits.write_bytes_per_second", |c| c.clone_limits.write_bytes_per_second = 1),
        ("pool.address_offset", |c| c.pool.address_offset = 1),
        ("access", |c| c.access.clear()),
        ("access", |c| c.access[0].users.clear()),
        ("access", |c| c.access[0].users = vec![" ".into()]),
        ("access", |c| c.access[0].operator = false),
        ("access", |c| c.access[1].operations.push(Method::ForceUnmount)),
    ];
    Config::default().check().unwrap();
    for (index, (key, change)) in cases.iter().enumerate() {
        let mut config = Config::default();
        change(&mut config);
        let error = config.check().expect_err(key);
        assert_eq!(error.problems.len(), 1, "case {index}: {error}");
        assert_eq!(error.problems[0].key, *key, "case {index}: {error}");
    }
}

/// No number is without bounds, and none outside of them is accepted.
#[test]
fn every_number_has_bounds() {
    let mut numbers = 0;
    for section in settings::sections::<Config>().into_iter().filter(|section| !section.list) {
        for key in section.keys.iter().filter(|key| key.default.is_number()) {
            numbers += 1;
            let path = format!("{}.{}", section.name, key.name);
            for bad in ["-1", "1.5", "18446744073709551615", "99999999999999999999", "true"] {
                assert!(set_problem(&path, bad).contains(&path), "{path} = {bad}");
            }
            // The slots check the user ids against the ranges of the system.
            if path == "pool.uid_base" {
                assert!(
                    set_problem(&path, "0").contains(&path)
                        && set_problem(&path, "4294967295").contains(&path)
                );
                continue;
            }
            let (least, most) = key.range;
            let most = most.unwrap_or_else(|| panic!("{path} has no largest value"));
            assert!(set_problem(&path, &(most + 1).to_string()).contains(&path), "{path} = {most} + 1");
            if let Some(least) = least.filter(|least| *least > 0) {
                let problem = set_problem(&path, &(least - 1).to_string());
                assert!(problem.contains(&path), "{path} = {least} - 1: {problem}");
            }
        }
    }
    assert!(numbers >= 40, "{numbers} numbers");
}

#[test]
fn limits_of_a_clone_that_cannot_work_are_refused() {
    let limits = Limits::default().each().map(|(name, _, range)| (name, range.least));
    for (name, least) in limits {
        let path = format!("clone_limits.{name}");
        for bad in [1, least - 1] {
            let problem = set_problem(&path, &bad.to_string());
            let expected = format!("--set: {path}: {bad} is too small: at least {least}");
            assert!(problem.starts_with(&expected), "{problem}");
        }
        let config = load(Some(&Etc::new("").file()), &[], &[(&path, &least.to_string())]);
        config.unwrap_or_else(|error| panic!("{path} = {least}: {error}"));
        // A rate of 0 is no limit; nothing else may be unlimited.
        let zero = load(Some(&Etc::new("").file()), &[], &[(&path, "0")]);
        assert_eq!(zero.is_ok(), name.ends_with("_per_second"), "{path}");
    }
}

#[test]
fn by_default_root_is_operator_and_the_group_may_not_force_unmount() {
    let access = Config::default().access;
    assert_eq!(access[0], AccessRule { users: vec!["root".into()], operator: true, ..AccessRule::default() });
    assert_eq!((access[1].users.len(), access[1].groups.as_slice()), (0, &["hostd".to_owned()][..]));
    assert!(!access[1].operator && !access[1].operations.contains(&Method::ForceUnmount));
    assert_eq!(access[1].operations.len(), Method::ALL.len() - 1);
}

#[test]
fn warden_browser_ip_sets_the_templates_address() {
    let load = |variables: &[(&str, &str)]| load(Some(&Etc::new("").file()), variables, &[]);
    let warden = ("WARDEN_BROWSER_IP", "192.168.72.6");
    assert_eq!(load(&[warden]).unwrap().freebsd.template_ip, Some([192, 168, 72, 6].into()));
    let own = ("HOSTD_FREEBSD_TEMPLATE_IP", "192.168.72.7");
    assert_eq!(load(&[own, warden]).unwrap().freebsd.template_ip, Some([192, 168, 72, 7].into()));
    let error = load(&[("WARDEN_BROWSER_IP", "here")]).unwrap_err().to_string();
    assert!(error.contains("WARDEN_BROWSER_IP") && error.contains("freebsd.template_ip"), "{error}");
    let error = load(&[("WARDEN_BROWSER_IP", "10.87.64.16")]).unwrap_err().to_string();
    assert!(error.contains("browsertask001"), "a clone's address: {error}");
}

#[test]
fn the_settings_in_effect_load_as_the_same_configuration() {
    let mut config = Config::default();
    config.pool.subnet = "192.168.72.0/24".parse().unwrap();
    config.pool.last_slot = 100;
    config.access[1].operator = true;
    let text = settings::effective_toml(&config);
    assert!(text.lines().any(|line| line == r#"pool.subnet = "192.168.72.0/24""#), "{text}");
    assert_eq!(Etc::new(&text).load().unwrap(), config);
}

/// The setup scripts read settings by name from the output of `hostd --print-config`.
#[test]
fn settings_that_the_freebsd_scripts_read_exist() {
    let text = settings::effective_toml(&Config::default());
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/freebsd");
    for name in ["common.sh", "setup-host", "setup-template"] {
        let script = std::fs::read_to_string(scripts.join(name)).unwrap();
        let read_keys: Vec<&str> =
            script.split("$(setting ").skip(1).map(|rest| rest.split(')').next().unwrap()).collect();
        assert!(!read_keys.is_empty(), "{name} reads no setting");
        for key in read_keys {
            let known = text.lines().any(|line| line.starts_with(&format!("{key} = ")));
            assert!(known, "{name} reads {key}, which is not a setting");
        }
    }
}

#[test]
fn the_default_file_means_the_defaults_commented_out_or_not() {
    let text = settings::default_toml::<Config>();
    assert_eq!(Etc::new(&text).load().unwrap(), Config::default());

    let live: Vec<&str> = text
        .lines()
        .map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line))
        .collect();
    let live = live.join("\n");
    let table: toml::Table = live.parse().unwrap();
    for section in settings::sections::<Config>() {
        // A list without default entries has nothing to show.
        if section.default.as_array().is_some_and(Vec::is_empty) {
            continue;
        }
        assert!(table.contains_key(&section.name), "{}", section.name);
        for key in section.keys {
            let there = match &table[&section.name] {
                toml::Value::Table(keys) => keys.contains_key(&key.name),
                list => list.as_array().unwrap().iter().any(|item| item.get(&key.name).is_some()),
            };
            assert!(there, "{}.{} is not in the default file", section.name, key.name);
        }
    }
    // The file shows the folders of Linux.
    if Config::default_file() == Path::new("/etc/hostd/hostd.toml") {
        assert_eq!(Etc::new(&live).load().unwrap(), Config::default());
    }
}
