//! The exact commands of every operation on FreeBSD, written down as `docs/freebsd-commands.md`.
//!
//! The lifecycle runs the FreeBSD host over tools that note how they were called. The document is what they noted, so it
//! cannot drift from the code: `HOSTD_UPDATE_DOCS=1 cargo test -p hostd --test freebsd_commands` writes it anew. How many
//! commands an operation may need is checked here too.

#![allow(clippy::unwrap_used)]

use hostd::api::{CloneInfo, CreateParams, DestroyParams, ReapParams, Severity};
use hostd::audit::Audit;
use hostd::clock::SystemClock;
use hostd::config::{Config, JailDriver};
use hostd::host::Host;
use hostd::host::freebsd::{FreebsdHost, egress};
use hostd::lifecycle::{Caller, Engine, Setup};
use hostd::metrics::Metrics;
use hostd::slot::{Slot, Slots};
use std::fmt::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const TOOLS: [&str; 13] = [
    "bastille", "ifconfig", "jail", "jexec", "jls", "kill", "mount", "pfctl", "ps", "rctl", "sysctl",
    "umount", "zfs",
];

/// A host whose tools write down how they were called.
struct Lab {
    folder: tempfile::TempDir,
    engine: Engine<FreebsdHost>,
    pool: Slots,
}

impl Lab {
    async fn new(change: impl FnOnce(&mut Config)) -> Lab {
        let folder = tempfile::tempdir().unwrap();
        let tools = folder.path().join("tools");
        let jails = folder.path().join("jails");
        for path in [&tools, &tools.join("state"), &jails, &folder.path().join("state")] {
            std::fs::create_dir(path).unwrap();
        }
        // Clones on the loopback network, where this test can answer for them.
        let listener = tokio::net::TcpListener::bind("127.87.64.16:0").await.unwrap();
        let mut config = Config::default();
        config.pool.subnet = "127.87.64.0/22".parse().unwrap();
        config.pool.clones_dir = jails.clone();
        config.egress.external = "em0".into();
        config.egress.resolver = Some([9, 9, 9, 9].into());
        config.egress.browserd_port = listener.local_addr().unwrap().port();
        config.host.tool_folders = vec![tools.clone()];
        config.paths.state = folder.path().join("state");
        config.paths.audit = folder.path().join("audit.log");
        config.lifecycle.busy_patience_ms = 0;
        config.freebsd.console_logs = folder.path().join("state");
        change(&mut config);
        let pool = Slots::new(&config.pool).unwrap();
        let policy = egress::policy(&config, &pool).unwrap();

        let names = pool.names(Slot::new(1).unwrap());
        let script = include_str!("tool.sh")
            .replace("@JAILS@", &jails.display().to_string())
            .replace("@ADDRESS@", &names.ip.to_string())
            .replace("@GATEWAY@", &pool.gateway().to_string());
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
        let host = FreebsdHost::open(&config, &pool).unwrap();
        let audit = Arc::new(Audit::open(&config.paths.audit).unwrap());
        let setup = Setup {
            config: Arc::new(config),
            clock: Arc::new(SystemClock::new().unwrap()),
            audit,
            metrics: Arc::new(Metrics::new()),
        };
        let engine = Engine::open(host, setup).await.unwrap();
        assert_eq!(engine.status().alarms, Vec::<String>::new());
        Lab { folder, engine, pool }
    }

    fn state(&self, name: &str) -> PathBuf {
        self.folder.path().join("tools/state").join(name)
    }

    fn set(&self, name: &str) {
        std::fs::write(self.state(name), "").unwrap();
    }

    /// What was run since the last time, as an administrator would see it.
    fn ran(&self) -> Vec<String> {
        let log = self.folder.path().join("tools/log");
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        std::fs::write(&log, "").unwrap();
        let names = self.pool.names(Slot::new(1).unwrap());
        let text = text
            .replace(&self.folder.path().join("jails").display().to_string(), "/usr/local/bastille/jails")
            .replace(&self.folder.path().join("state").display().to_string(), "/var/db/hostd")
            .replace(&names.mac_host.to_string(), "02:0a:0a:57:40:10")
            .replace(&names.mac_clone.to_string(), "02:0b:0a:57:40:10")
            .replace("127.87.64.", "10.87.64.");
        let mut lines: Vec<String> = text.lines().map(without_identity).collect();
        // Looks are taken at the same time: within a group their order means nothing.
        let mut at = 0;
        while at < lines.len() {
            let end =
                lines[at..].iter().position(|line| !is_look(line)).map_or(lines.len(), |more| at + more);
            lines[at..end].sort();
            at = end + 1;
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

/// A clone's identity is another each time.
fn without_identity(line: &str) -> String {
    let hex = |text: &str| text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let words = line.split(' ').map(|word| match word.rsplit_once([':', '=']) {
        Some((before, id)) if hex(id) => format!("{before}{}CLONE_ID", &word[before.len()..=before.len()]),
        _ => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

fn is_look(line: &str) -> bool {
    ["zfs get", "jls", "ifconfig -a", "pfctl -s", "pfctl -v", "ps ", "mount -p", "sysctl"]
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

Every command that hostd runs on FreeBSD, operation by operation, for slot 1 of the default pool. Written down by tools
that note how they are called (`hostd/tests/freebsd_commands/`), not by hand. Each runs by its absolute path (from
`host.tool_folders`), with an empty environment but `PATH`, `LC_ALL=C` and `HOME=/`, nothing to read, a deadline, and no
shell. Beside the commands hostd writes `jail.conf`, `fstab`, `settings.conf`, `root/etc/rc.conf` and
`root/etc/resolv.conf` of a clone itself, and asks `http://ADDRESS:8080/readyz` itself.

A group of looks (`zfs get`, `jls`, `ifconfig -a`, `ps`, …) runs at the same time and is shown in alphabetical order.
";

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_are_those_written_down() {
    let mut document = Document(ABOUT.to_owned());
    let lab = Lab::new(|_| {}).await;

    let look = lab.ran();
    document.part(
        "A look at the whole host",
        "At the start, every `lifecycle.reconcile_interval_ms` and for every reap: the same number of commands whatever the\n\
         number of clones. Eight of them prove that PF is on,\n\
         looks at the bridge, calls the anchor, and has the very rules that hostd renders.",
        &look,
    );

    let clone = lab.create().await;
    let create = lab.ran();
    assert!(create.len() <= 12, "{create:#?}");
    document.part(
        "browser-clone-create",
        "With `freebsd.jail_driver = \"jail\"`. Each part is looked at after it was made, except the table: what `-T add`\n\
         reports is PF's own count, and the next look at the host would put a lost member back.",
        &create,
    );

    lab.engine.reconcile_now().await;
    let again = lab.ran();
    assert_eq!(again, look, "a look does not depend on how many clones there are");

    lab.destroy(&clone).await;
    document.part(
        "browser-clone-destroy",
        "Cut off first, then the service, the interfaces, the jail, the limits, the datasets; looked at in between, because\n\
         only what is there and ours is touched, and at the end.",
        &lab.ran(),
    );

    lab.engine.reap(&Caller::hostd("test"), ReapParams::default(), None).await.unwrap();
    assert_eq!(lab.ran(), look, "a reap with nothing to do is one look");

    // A clone that does not want to go.
    let lab = Lab::new(|_| {}).await;
    let clone = lab.create().await;
    lab.set("busy");
    lab.ran();
    lab.destroy(&clone).await;
    document.part(
        "browser-clone-destroy of a clone whose jail is still dying",
        "The kernel holds a jail for up to a minute after its last connection, and with it the dataset. Nobody uses it any\n\
         more, so it is unmounted by force.",
        &lab.ran(),
    );

    // The firewall.
    let lab = Lab::new(|_| {}).await;
    lab.ran();
    lab.set("emptied");
    lab.engine.host().repair_egress().await.unwrap();
    document.part(
        "The anchor lost its rules",
        "The bridge goes down first. The rules are loaded into the anchor, and only there; proven rules bring it up again.",
        &lab.ran(),
    );
    lab.set("off");
    lab.engine.host().repair_egress().await.unwrap();
    assert!(lab.state("down").exists());
    document.part(
        "PF is off",
        "The bridge goes down and stays down until an administrator has loaded the rules and switched PF on.",
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
        "Once more a look at the whole host, and what a look does not tell.",
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
        "`freebsd.jail_driver = \"bastille\"` changes two commands, one at a time on the whole host; `jls` tells what came of\n\
         them.",
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
        "docs/freebsd-commands.md no longer fits the code, from {differs:?} on. \
         Write it anew: HOSTD_UPDATE_DOCS=1 cargo test -p hostd --test freebsd_commands"
    );
}
