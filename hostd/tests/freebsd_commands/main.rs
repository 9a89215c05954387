//! Records the exact commands of every operation on FreeBSD in `docs/freebsd-commands.md`.
//!
//! The lifecycle runs the FreeBSD host with tools that log their arguments. `HOSTD_UPDATE_DOCS=1 cargo test -p hostd --test
//! freebsd_commands` updates the document. The number of commands of a create is checked too.

#![allow(clippy::unwrap_used)]

use hostd::api::{CloneInfo, CreateParams, DestroyParams, ReapParams, Severity};
use hostd::audit::Audit;
use hostd::clock::SystemClock;
use hostd::config::{Config, JailDriver};
use hostd::host::Host;
use hostd::host::freebsd::{FreebsdHost, egress};
use hostd::lifecycle::{Caller, Lifecycle, Setup};
use hostd::metrics::Metrics;
use hostd::slot::{Slot, Slots};
use std::fmt::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const TOOLS: [&str; 14] = [
    "arp", "bastille", "ifconfig", "ipfw", "jail", "jls", "mount", "pfctl", "pkill", "ps", "rctl", "sysctl",
    "umount", "zfs",
];

/// A host whose tools log their arguments.
struct Lab {
    folder: tempfile::TempDir,
    engine: Lifecycle<FreebsdHost>,
    slots: Slots,
}

impl Lab {
    async fn new(change: impl FnOnce(&mut Config)) -> Lab {
        let folder = tempfile::tempdir().unwrap();
        let tools = folder.path().join("tools");
        let jails = folder.path().join("jails");
        for path in [&tools, &tools.join("state"), &jails, &folder.path().join("state")] {
            std::fs::create_dir(path).unwrap();
        }
        // Clones on the loopback network, where this test can listen for them.
        let listener = tokio::net::TcpListener::bind("127.87.64.16:0").await.unwrap();
        let mut config = Config::default();
        config.pool.subnet = "127.87.64.0/22".parse().unwrap();
        config.pool.clones_dir = jails.clone();
        config.egress.external = "em0".into();
        config.egress.resolver = hostd::config::Resolver::Address([9, 9, 9, 9].into());
        config.egress.browserd_port = listener.local_addr().unwrap().port();
        config.host.tool_folders = vec![tools.clone()];
        config.paths.state = folder.path().join("state");
        config.paths.audit = folder.path().join("audit.log");
        config.lifecycle.busy_patience_ms = 0;
        config.freebsd.console_logs = folder.path().join("state");
        change(&mut config);
        let slots = Slots::new(&config.pool).unwrap();
        let policy = egress::policy(&config, &slots).unwrap();

        let names = slots.names(Slot::new(1).unwrap());
        let script = include_str!("tool.sh")
            .replace("@JAILS@", &jails.display().to_string())
            .replace("@ADDRESS@", &names.ip.to_string())
            .replace("@GATEWAY@", &slots.gateway().to_string());
        for tool in TOOLS {
            std::fs::write(tools.join(tool), &script).unwrap();
            std::fs::set_permissions(tools.join(tool), PermissionsExt::from_mode(0o755)).unwrap();
        }
        let lines = |all: Vec<String>| all.into_iter().map(|line| line + "\n").collect::<String>();
        std::fs::write(tools.join("rules"), lines(pf::pf_conf::filter_rules(&policy))).unwrap();
        std::fs::write(tools.join("nat"), lines(pf::pf_conf::nat_rules(&policy))).unwrap();
        let denied = pf::pf_conf::denied_table(&policy).iter().map(|net| format!("   {net}")).collect();
        std::fs::write(tools.join("denied"), lines(denied)).unwrap();
        let recorded = include_str!("../../../pf/tests/transcripts/m-pf-kill.txt");
        let table = recorded.split_once("-pa-r--\tbrowser_tasks\n").unwrap().1;
        let table = table.lines().take_while(|line| line.starts_with('\t')).map(str::to_owned).collect();
        std::fs::write(tools.join("tables"), format!("-pa-r--\tbrowser_tasks\n{}", lines(table))).unwrap();

        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 1024];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
            }
        });
        let host = FreebsdHost::open(&config, &slots).unwrap();
        let audit = Arc::new(Audit::open(&config.paths.audit).unwrap());
        let setup = Setup {
            config: Arc::new(config),
            clock: Arc::new(SystemClock::new().unwrap()),
            audit,
            metrics: Arc::new(Metrics::new()),
        };
        let engine = Lifecycle::open(host, setup).await.unwrap();
        assert_eq!(engine.status().alarms, Vec::<String>::new());
        Lab { folder, engine, slots }
    }

    fn state(&self, name: &str) -> PathBuf {
        self.folder.path().join("tools/state").join(name)
    }

    fn set(&self, name: &str) {
        std::fs::write(self.state(name), "").unwrap();
    }

    /// The commands since the last call, with the paths and addresses of a default host.
    fn ran(&self) -> Vec<String> {
        let log = self.folder.path().join("tools/log");
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        std::fs::write(&log, "").unwrap();
        let names = self.slots.names(Slot::new(1).unwrap());
        let text = text
            .replace(&self.folder.path().join("jails").display().to_string(), "/usr/local/bastille/jails")
            .replace(&self.folder.path().join("state").display().to_string(), "/var/db/hostd")
            .replace(&names.mac_host.to_string(), "02:0a:0a:57:40:10")
            .replace(&names.mac_clone.to_string(), "02:0b:0a:57:40:10")
            .replace("127.87.64.", "10.87.64.");
        let mut lines: Vec<String> = text.lines().map(without_identity).collect();
        // Inspections run at the same time, so their order within a group is arbitrary.
        let mut at = 0;
        while at < lines.len() {
            let end = lines[at..]
                .iter()
                .position(|line| !is_inspection(line))
                .map_or(lines.len(), |more| at + more);
            lines[at..end].sort();
            at = end + 1;
        }
        // States are killed in both directions at the same time.
        for group in lines.chunk_by_mut(|one, other| [one, other].iter().all(|line| line.contains(" -M -k ")))
        {
            group.sort();
        }
        lines
    }

    async fn create(&self) -> CloneInfo {
        let params = CreateParams::new(format!("r{}", uuid()).parse().unwrap());
        self.engine.create(&Caller::hostd("test"), params, None).await.unwrap().clone
    }

    async fn destroy(&self, clone: &CloneInfo) {
        let params = DestroyParams::new(clone.name.clone(), clone.clone_id.clone().unwrap());
        self.engine.destroy(&Caller::hostd("test"), params, None).await.unwrap();
    }
}

fn uuid() -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos()
}

/// Replace the clone's identity, which is random.
fn without_identity(line: &str) -> String {
    let hex = |text: &str| text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let words = line.split(' ').map(|word| match word.rsplit_once([':', '=']) {
        Some((before, id)) if hex(id) => format!("{before}{}CLONE_ID", &word[before.len()..=before.len()]),
        _ => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

fn is_inspection(line: &str) -> bool {
    [
        "arp -an",
        "ipfw list",
        "zfs get",
        "jls",
        "ifconfig -a",
        "pfctl -s",
        "pfctl -v",
        "ps ",
        "mount -p",
        "sysctl",
    ]
    .iter()
    .any(|look| line.starts_with(look))
        || line == "rctl"
        || (line.starts_with("pfctl") && (line.ends_with("-T show") || line.contains("-P -s")))
}

struct Document(String);

impl Document {
    fn part(&mut self, title: &str, text: &str, commands: &[String]) {
        let count = commands.len();
        let _ = writeln!(self.0, "\n## {title}\n\n{text}\n\n{count} commands:\n");
        for command in commands {
            let _ = writeln!(self.0, "    {command}");
        }
    }
}

const ABOUT: &str = "\
# The commands of the FreeBSD host

Every command that hostd runs on FreeBSD, by operation, for slot 1 with the default configuration. The list is recorded by
a test (`hostd/tests/freebsd_commands/`). Each command runs by its absolute path (from `host.tool_folders`), without a
shell, with a deadline, an empty standard input, and no environment but `PATH`, `LC_ALL=C` and `HOME=/`. hostd itself
writes `jail.conf`, `fstab`, `settings.conf`, `root/etc/rc.conf` and `root/etc/resolv.conf` of a clone and requests
`http://ADDRESS:8080/readyz`.

Inspections (`zfs get`, `jls`, `ifconfig -a`, `ps`, …) of one group run at the same time and are shown in alphabetical
order.
";

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_match_the_document() {
    let mut document = Document(ABOUT.to_owned());
    let lab = Lab::new(|_| {}).await;

    let look = lab.ran();
    document.part(
        "Inspection of the whole host",
        "At the start, every `lifecycle.reconcile_interval_ms` and for every reap. The number of commands does not depend on the\n\
         number of clones. Eight of them verify that PF is enabled, filters the bridge, calls the anchor, and has exactly the\n\
         rules that hostd renders. `arp -f` runs at the first inspection and when entries are missing.",
        &look,
    );

    let clone = lab.create().await;
    let mut create = lab.ran();
    assert!(create.len() <= 12, "{create:#?}");
    // The steps before the jail run at the same time. Each uses a tool of its own.
    let jail = create.iter().position(|line| line.starts_with("jail ")).unwrap();
    create[..jail].sort_by_key(|line| line.split(' ').next().unwrap().to_owned());
    document.part(
        "browser-clone-create",
        "With `freebsd.jail_driver = \"jail\"`. Files, limits, interfaces and membership are made at the same time, the jail after\n\
         them. Each part is inspected after it was created, except the table:\n\
         `-T add` reports how many addresses PF added, and the next inspection would restore a lost member.",
        &create,
    );

    lab.engine.reconcile_now().await;
    let again = lab.ran();
    // The first inspection sets the ARP entries and the second barrier, which is listed once more.
    let mut listed = std::collections::BTreeSet::new();
    let look: Vec<String> = look
        .into_iter()
        .filter(|line| !line.starts_with("arp -f ") && !line.starts_with("ipfw -f "))
        .filter(|line| listed.insert(line.clone()))
        .collect();
    assert_eq!(again, look, "an inspection does not depend on the number of clones");

    lab.destroy(&clone).await;
    document.part(
        "browser-clone-destroy",
        "The order is egress, processes, interfaces, jail, limits, datasets. The inspection before the first removal ensures that\n\
         only objects of the clone are removed, the one at the end that nothing is left.",
        &lab.ran(),
    );

    lab.engine.reap(&Caller::hostd("test"), ReapParams::default(), None).await.unwrap();
    assert_eq!(lab.ran(), look, "a reap without candidates is one inspection");

    // A clone whose storage is busy.
    let lab = Lab::new(|_| {}).await;
    let clone = lab.create().await;
    lab.set("busy");
    lab.ran();
    lab.destroy(&clone).await;
    document.part(
        "browser-clone-destroy of a clone whose jail is still dying",
        "The kernel holds a jail and its dataset for up to a minute after its last connection. No process uses the dataset, so\n\
         it is unmounted by force.",
        &lab.ran(),
    );

    // The firewall.
    let lab = Lab::new(|_| {}).await;
    lab.ran();
    lab.set("emptied");
    lab.engine.host().repair_egress().await.unwrap();
    document.part(
        "The anchor lost its rules",
        "The bridge is taken down first. The rules are loaded into the anchor only. After they are verified, the states of all clones\n\
         are killed, and the bridge is taken up.",
        &lab.ran(),
    );
    lab.set("off");
    lab.engine.host().repair_egress().await.unwrap();
    assert!(lab.state("down").exists());
    document.part(
        "PF is off",
        "The bridge is taken down and stays down until an administrator has loaded the rules and enabled PF.",
        &lab.ran(),
    );
    std::fs::remove_file(lab.state("off")).unwrap();
    lab.engine.host().repair_egress().await.unwrap();
    assert!(!lab.state("down").exists());

    let lab = Lab::new(|_| {}).await;
    lab.ran();
    let findings = lab.engine.host().checks().await;
    let wrong: Vec<_> = findings.iter().filter(|finding| finding.severity == Severity::Error).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    document.part(
        "hostctl doctor",
        "An inspection of the whole host, and the checks that it does not include.",
        &lab.ran(),
    );

    // The same clone by Bastille.
    let lab = Lab::new(|config| {
        config.freebsd.jail_driver = JailDriver::Bastille;
    })
    .await;
    lab.ran();
    let clone = lab.create().await;
    let create = lab.ran();
    lab.destroy(&clone).await;
    let destroy = lab.ran();
    let bastille: Vec<String> = create
        .into_iter()
        .chain(destroy)
        .filter(|line| line.starts_with("jail ") || line.starts_with("bastille "))
        .collect();
    document.part(
        "With Bastille",
        "`freebsd.jail_driver = \"bastille\"` changes two commands, of which only one runs at a time on the host. `jls`\n\
         verifies their effect.",
        &bastille,
    );

    check(&document.0);
}

fn check(fresh: &str) {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("docs/freebsd-commands.md");
    if std::env::var_os("HOSTD_UPDATE_DOCS").is_some() {
        std::fs::write(&file, fresh).unwrap();
        return;
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    let differs = committed.lines().zip(fresh.lines()).find(|(old, new)| old != new);
    assert!(
        committed == fresh,
        "docs/freebsd-commands.md is outdated, from {differs:?} on. \
         Update it: HOSTD_UPDATE_DOCS=1 cargo test -p hostd --test freebsd_commands"
    );
}
