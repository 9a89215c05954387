//! The configuration's layers, refusals and default file.

#![allow(clippy::unwrap_used)]

use hostd::api::Method;
use hostd::config::{self, AccessRule, Config, ConfigError, LogFormat, Origin};
use std::path::{Path, PathBuf};

/// A folder with a configuration file in it.
struct Etc(tempfile::TempDir);

impl Etc {
    fn new(text: &str) -> Etc {
        let etc = Etc(tempfile::tempdir().unwrap());
        std::fs::write(etc.file(), text).unwrap();
        etc
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("hostd.toml")
    }

    fn drop_in(&self, name: &str, text: &str) {
        std::fs::create_dir_all(self.0.path().join("conf.d")).unwrap();
        std::fs::write(self.0.path().join("conf.d").join(name), text).unwrap();
    }

    fn load(&self) -> Result<Config, ConfigError> {
        load(Some(&self.file()), &[], &[])
    }
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn load(file: Option<&Path>, env: &[(&str, &str)], sets: &[(&str, &str)]) -> Result<Config, ConfigError> {
    config::load(file, pairs(env).into_iter(), &pairs(sets))
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
    if !config::default_file().exists() {
        assert_eq!(load(None, &[], &[]).unwrap(), Config::default());
    }
}

#[test]
fn a_world_writable_file_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let etc = Etc::new("[pool]\nprefix = \"a\"\n");
    std::fs::set_permissions(etc.file(), PermissionsExt::from_mode(0o666)).unwrap();
    let error = etc.load().unwrap_err().to_string();
    assert!(error.ends_with("hostd.toml: is world-writable and therefore refused: chmod o-w"), "{error}");
    std::fs::set_permissions(etc.file(), PermissionsExt::from_mode(0o664)).unwrap();
    assert_eq!(etc.load().unwrap().pool.prefix, "a");
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
    assert_eq!(error.problems[0].origin, Origin::File(etc.file(), 4));
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
    let text = config::effective_toml(&config);
    assert!(text.lines().any(|line| line == r#"pool.subnet = "192.168.72.0/24""#), "{text}");
    assert_eq!(Etc::new(&text).load().unwrap(), config);
}

/// The setup scripts read settings by name from the output of `hostd --print-config`.
#[test]
fn settings_that_the_freebsd_scripts_read_exist() {
    let text = config::effective_toml(&Config::default());
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
    let text = config::default_toml();
    assert_eq!(Etc::new(&text).load().unwrap(), Config::default());

    let live: Vec<&str> = text
        .lines()
        .map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line))
        .collect();
    let live = live.join("\n");
    let table: toml::Table = live.parse().unwrap();
    for section in config::sections() {
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
    if config::default_file() == Path::new("/etc/hostd/hostd.toml") {
        assert_eq!(Etc::new(&live).load().unwrap(), Config::default());
    }
}
