//! The network of a default install: names, egress as doctor proves it, other firewalls, and who may connect to a clone.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod daemon;
#[path = "linux_network/firewalls.rs"]
mod firewalls;
mod lab;
mod life;

use daemon::{Daemon, Home, until};
use hostd::api::{CloneInfo, Finding, Severity, StatusParams};
use lab::{
    Lab, PORT, PUBLIC, Page, in_private_machine, reaches, resolve, resolves, run, serve, set_resolv_conf,
};
use life::{block_on, destroy, home, made, same};
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const HOST: &str = "/proc/self/ns/net";
const GATEWAY: &str = "10.87.64.1";
const STUB: &str = "127.0.0.53";
const ROUTER: &str = "192.168.1.1";
const PRIVATE: Ipv4Addr = Ipv4Addr::new(10, 1, 2, 3);
const NAMED: &str = "egress.probe=name.example:8088";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn namespace(home: &Home, clone: &CloneInfo) -> PathBuf {
    home.path().join("state/run").join(clone.name.as_str()).join("net")
}

async fn findings(daemon: &Daemon) -> Vec<Finding> {
    let client = daemon.client().await;
    let status = client.status(StatusParams { checks: true, metrics: false }).await.unwrap();
    status.findings.unwrap()
}

fn of<'a>(findings: &'a [Finding], check: &str) -> &'a Finding {
    findings.iter().find(|finding| finding.check == check).unwrap_or_else(|| panic!("{check}: {findings:#?}"))
}

/// The processes that resolve names for clones.
fn forwarders() -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let line = std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        if line.split('\0').nth(1) == Some("forward-names") {
            found.push(pid);
        }
    }
    found
}

/// A stub resolver on this machine's loopback, and a router's resolver with a private address.
fn resolvers() {
    run(&format!("ip addr add {STUB}/32 dev lo"));
    run(&format!("ip -n internet addr add {ROUTER}/32 dev lo"));
    run(&format!("ip -n internet addr add {PRIVATE}/32 dev lo"));
    resolve(HOST, ip(STUB), PRIVATE);
    resolve("internet", ip(ROUTER), PRIVATE);
}

#[test]
fn clones_resolve_names_as_the_machine_does_and_only_they_are_answered() {
    let name = "clones_resolve_names_as_the_machine_does_and_only_they_are_answered";
    in_private_machine(name, |lab| {
        resolvers();
        set_resolv_conf(&format!("nameserver {STUB}\n"));
        let home = home(lab, &["egress.resolver=auto"]);
        block_on(async {
            let daemon = home.start().await;
            let client = daemon.client().await;
            let clone = made(&client, "names", &home).await;
            let inside = namespace(&home, &clone);
            assert!(resolves(&inside, ip(GATEWAY)), "by a stub on loopback\n{}", home.log());
            assert!(!resolves(&inside, ip(ROUTER)), "the router itself is out of reach");
            let mut page = Page::open(clone.endpoint.as_deref().unwrap());
            let (title, problem) = page.load(&format!("http://name.example:{PORT}/"), lab::LIMIT);
            assert_eq!((title.as_str(), problem.as_str()), ("rendered", ""));
            // A name that leads to a private address is resolved, and the address is refused at once.
            let (title, problem) =
                page.load(&format!("http://rebind.example:{PORT}/"), Duration::from_secs(5));
            assert_eq!((title.as_str(), problem.as_str()), ("", "net::ERR_ADDRESS_UNREACHABLE"));

            // The machine's resolver changes while the clone runs: a router, a VPN.
            set_resolv_conf(&format!("search lan\nnameserver {ROUTER}\n"));
            assert!(resolves(&inside, ip(GATEWAY)), "by a router with a private address");
            // The first one is dead: nobody is there.
            set_resolv_conf(&format!("nameserver 127.0.0.99\nnameserver {ROUTER}\n"));
            assert!(resolves(&inside, ip(GATEWAY)), "by the second of two");

            // Nobody else is answered, also without any rules on the host.
            assert!(!resolves(Path::new("/run/netns/internet"), ip(GATEWAY)), "from outside");
            run("ip -n internet route add 10.87.64.0/22 via 198.51.100.1");
            assert!(!resolves(Path::new("/run/netns/internet"), ip(GATEWAY)), "from outside, with a route");

            // It has no privileges, a user id of its own, and outlives hostd.
            let [forwarder] = forwarders()[..] else { panic!("{:?}", forwarders()) };
            let status = std::fs::read_to_string(format!("/proc/{forwarder}/status")).unwrap();
            let field = |name: &str| {
                let line = status.lines().find(|line| line.starts_with(name)).unwrap();
                line.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>()
            };
            let uid = lab::uid_base().to_string();
            assert_eq!(field("Uid:"), vec![uid; 4]);
            assert_eq!(
                (field("CapEff:"), field("NoNewPrivs:")),
                (vec!["0".repeat(16)], vec!["1".to_owned()])
            );
            daemon.signal(nix::sys::signal::Signal::SIGKILL);
            drop(daemon);
            assert!(resolves(&inside, ip(GATEWAY)), "while hostd does not run");
            let daemon = home.start().await;
            let client = daemon.client().await;
            assert!(resolves(&inside, ip(GATEWAY)), "by the one of the new hostd");
            let [second] = forwarders()[..] else { panic!("{:?}", forwarders()) };
            assert_ne!(second, forwarder);

            // One that ended is replaced by the next inspection.
            nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(second.cast_signed()),
                nix::sys::signal::Signal::SIGKILL,
            )
            .unwrap();
            until("names are resolved again", async || resolves(&inside, ip(GATEWAY))).await;

            destroy(&client, &clone).await;
            daemon.stop().await;
            assert_eq!(forwarders(), [] as [u32; 0], "hostd stopped and no clone is left");
        });
    });
}

#[test]
fn doctor_proves_names_and_egress_from_a_clone_network_and_leaves_nothing() {
    let name = "doctor_proves_names_and_egress_from_a_clone_network_and_leaves_nothing";
    in_private_machine(name, |lab| {
        resolvers();
        set_resolv_conf(&format!("nameserver {STUB}\n"));
        let home = home(lab, &[NAMED]);
        block_on(async {
            let daemon = home.start().await;
            let before = lab.inventory(home.path());
            let seen = findings(&daemon).await;
            for check in ["names", "internet", "other-firewalls", "callers"] {
                let finding = of(&seen, check);
                assert_eq!(finding.severity, Severity::Ok, "{finding:?}\n{}", home.log());
                println!("{check}: {}", finding.message);
            }
            assert!(
                of(&seen, "names").message.contains(STUB) && of(&seen, "internet").message.contains(PUBLIC)
            );
            same(&before, &lab.inventory(home.path()));

            // The machine's resolver is dead.
            set_resolv_conf("nameserver 127.0.0.99\n");
            let seen = findings(&daemon).await;
            let finding = of(&seen, "names");
            assert_eq!(finding.severity, Severity::Error);
            assert!(
                finding.message.contains("127.0.0.99") && finding.fix.contains("resolv.conf"),
                "{finding:?}"
            );
            assert_eq!(of(&seen, "internet").severity, Severity::Error);
            set_resolv_conf(&format!("nameserver {STUB}\n"));

            // Nothing is forwarded: the machine itself gets through, so it is the clones' way.
            std::fs::write("/proc/sys/net/ipv4/ip_forward", "0").unwrap();
            let seen = findings(&daemon).await;
            assert_eq!(of(&seen, "names").severity, Severity::Ok);
            let finding = of(&seen, "internet");
            assert!(
                finding.severity == Severity::Error && finding.message.contains("itself can"),
                "{finding:?}"
            );
            std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();

            // The Internet is gone for all.
            run("ip link set up0 down");
            let finding = findings(&daemon).await;
            let finding = of(&finding, "internet");
            assert!(
                finding.severity == Severity::Error && finding.message.starts_with("neither"),
                "{finding:?}"
            );
            run("ip link set up0 up");
            run("ip route add default via 198.51.100.2");

            // Another program's chain that drops what it does not know is named, with its fix.
            run("nft add table ip filter");
            run("nft add chain ip filter FORWARD { type filter hook forward priority 0 ; policy drop ; }");
            let seen = findings(&daemon).await;
            let finding = of(&seen, "other-firewalls");
            assert_eq!(finding.severity, Severity::Error, "{finding:?}");
            assert!(finding.message.contains("table ip filter chain FORWARD"), "{finding:?}");
            let (commands, _) = finding.fix.split_once(" (docs").unwrap();
            commands.split("; ").for_each(run);
            let seen = findings(&daemon).await;
            for check in ["names", "internet", "other-firewalls"] {
                assert_eq!(of(&seen, check).severity, Severity::Ok, "{:?}", of(&seen, check));
            }
            run("nft delete table ip filter");
            same(&before, &lab.inventory(home.path()));
            daemon.stop().await;
        });
    });
}

#[test]
fn a_port_that_another_program_uses_is_named() {
    in_private_machine("a_port_that_another_program_uses_is_named", |lab| {
        run(&format!("ip -n internet addr add {ROUTER}/32 dev lo"));
        resolve("internet", ip(ROUTER), PRIVATE);
        set_resolv_conf(&format!("nameserver {ROUTER}\n"));
        let other = std::net::UdpSocket::bind("0.0.0.0:53").unwrap();
        let home = home(lab, &[NAMED]);
        block_on(async {
            let daemon = home.start().await;
            let finding = findings(&daemon).await;
            let finding = of(&finding, "names");
            assert!(
                finding.severity == Severity::Error
                    && finding.message.contains("10.87.64.1:53")
                    && finding.message.contains("another program"),
                "{finding:?}"
            );
            // It starts as soon as the port is free.
            drop(other);
            until("the resolver runs", async || !forwarders().is_empty()).await;
            let finding = findings(&daemon).await;
            assert_eq!(of(&finding, "names").severity, Severity::Ok, "{finding:?}\n{}", home.log());
            daemon.stop().await;
        });
    });
}

/// A call of hostd by another user of this host.
fn call_as(user: u32, socket: &Path, line: &str) -> Value {
    const CALL: &str = r#"use IO::Socket::UNIX;
        my $socket = IO::Socket::UNIX->new(Peer => $ARGV[0]) or die "connect: $!";
        print $socket "$ARGV[1]\n"; $socket->flush; print scalar <$socket>;"#;
    let user = user.to_string();
    let output = Command::new("setpriv")
        .args(["--reuid", &user, "--regid", &user, "--clear-groups", "--", "/usr/bin/perl", "-e", CALL])
        .arg(socket)
        .arg(line)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Whether a user's connection to browserd's port comes about, and that a refusal comes at once.
fn connects_as(user: u32, clone: Ipv4Addr) -> bool {
    let mut bash = Command::new("timeout");
    bash.args(["5", "bash", "-c", &format!("exec 3<>/dev/tcp/{clone}/8080")]).uid(user).stderr(Stdio::null());
    let status = bash.status().unwrap();
    assert_ne!(status.code(), Some(124), "user {user} got no answer");
    status.success()
}

#[test]
fn whoever_creates_a_clone_may_connect_to_it() {
    in_private_machine("whoever_creates_a_clone_may_connect_to_it", |lab: &Lab| {
        const CREATOR: u32 = 65_501;
        const READER: u32 = 65_502;
        let access = format!(
            "access=[{{users=[\"root\"],operator=true}},{{users=[\"{CREATOR}\"],operations=[\"browser-clone-create\"]}},\
             {{users=[\"{READER}\"],operations=[\"browser-clone-list\"]}}]"
        );
        let home = home(lab, &[&access, "paths.socket_group="]);
        block_on(async {
            let daemon = home.start().await;
            for (path, mode) in
                [(home.path().to_owned(), 0o755), (home.path().join("run"), 0o755), (home.socket(), 0o777)]
            {
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
            }
            let create =
                r#"{"jsonrpc":"2.0","id":1,"method":"browser-clone-create","params":{"request_id":"own"}}"#;
            let refused = call_as(READER, &home.socket(), create);
            assert_eq!(refused["error"]["data"]["code"], "denied", "{refused}");
            let made = call_as(CREATOR, &home.socket(), create);
            assert_eq!(made["result"]["callers"]["users"], serde_json::json!([0, CREATOR]), "{made}");
            let clone: Ipv4Addr = made["result"]["clone"]["ip"].as_str().unwrap().parse().unwrap();
            let name = made["result"]["clone"]["name"].as_str().unwrap();
            let inside = home.path().join("state/run").join(name).join("net");
            serve(&inside, SocketAddr::new(ip("::"), 8080));
            let who = || [0, CREATOR, READER, 65_534].map(|user| connects_as(user, clone));
            assert_eq!(who(), [true, true, false, false]);
            assert!(!reaches(
                Path::new("/run/netns/internet"),
                clone.into(),
                8080,
                Duration::from_millis(700)
            ));

            // Another program empties the set; hostd stops, starts, loads the rules again.
            run("nft flush set inet hostd callers");
            until("its creator may connect again", async || connects_as(CREATOR, clone)).await;
            daemon.stop().await;
            run("nft delete table inet hostd");
            let daemon = home.start().await;
            assert_eq!(who(), [true, true, false, false], "after a restart with new rules\n{}", home.log());
            let finding = findings(&daemon).await;
            assert!(of(&finding, "callers").message.contains("whoever creates"), "{finding:?}");
            daemon.stop().await;
        });
    });
}
