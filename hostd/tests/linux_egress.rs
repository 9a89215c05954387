//! What a clone on Linux reaches and what reaches it, probed on the real kernel.
//!
//! All addresses live in namespaces that the test makes. Every address that must be unreachable from a clone is first
//! shown to answer the host itself, so that a probe which cannot succeed does not count as a block.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod daemon;
mod lab;

use daemon::{Home, create, until};
use hostd::api::{CloneInfo, DestroyParams, EgressHealth, StatusParams};
use lab::{
    LIMIT, Lab, PORT, PUBLIC, PUBLIC6, Page, in_private_machine, reaches, resolve, resolves, run, serve,
};
use pf::linux::Firewall;
use pf::{Policy, PolicySpec};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const RESOLVER: &str = "203.0.113.53";
const FOREIGN_RESOLVER: &str = "203.0.113.54";
const PRIVATE: &str = "10.1.2.3";
/// One address of every denied range that can be routed at all.
const DENIED: [&str; 16] = [
    PRIVATE,
    "172.16.5.5",
    "192.168.7.7",
    "169.254.169.254",
    "169.254.1.1",
    "100.64.1.1",
    "100.100.100.200",
    "168.63.129.16",
    "198.18.0.5",
    "192.0.0.192",
    "fd12::1",
    "fd00:ec2::254",
    "64:ff9b::a01:203",
    "64:ff9b:1::a01:203",
    "2002:a01:203::1",
    "2001:0:1:2:3:4:f5fe:fdfc",
];
const PATIENCE: Duration = Duration::from_millis(700);
const HOST: &str = "/proc/self/ns/net";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn home(lab: &Lab) -> Home {
    let settings = lab.settings();
    let resolver = format!("egress.resolver={RESOLVER}");
    let settings: Vec<&str> = settings.iter().map(String::as_str).chain([resolver.as_str()]).collect();
    Home::new(&settings)
}

fn namespace(home: &Home, clone: &CloneInfo) -> PathBuf {
    home.path().join("state/run").join(clone.name.as_str()).join("net")
}

/// Which of these addresses are reached, all tried at once.
fn reached(namespace: &Path, addresses: &[IpAddr]) -> Vec<IpAddr> {
    std::thread::scope(|scope| {
        let tries: Vec<_> = addresses
            .iter()
            .map(|address| (*address, scope.spawn(move || reaches(namespace, *address, PORT, PATIENCE))))
            .collect();
        tries
            .into_iter()
            .filter_map(|(address, attempt)| attempt.join().unwrap().then_some(address))
            .collect()
    })
}

/// Wait until all of these addresses are reached: the links of the test's machine need a moment, IPv6 most of all.
fn until_reached(namespace: &Path, addresses: &[IpAddr]) {
    let deadline = Instant::now() + LIMIT;
    while reached(namespace, addresses) != addresses {
        assert!(Instant::now() < deadline, "only {:?} of {addresses:?}", reached(namespace, addresses));
    }
}

#[test]
fn a_clone_reaches_the_public_and_nothing_else() {
    in_private_machine("a_clone_reaches_the_public_and_nothing_else", |lab| {
        for address in DENIED.iter().chain([&RESOLVER, &FOREIGN_RESOLVER]) {
            let prefix = if ip(address).is_ipv4() { 32 } else { 128 };
            run(&format!("ip -n internet addr add {address}/{prefix} dev lo"));
        }
        // The private networks know the way back even without address translation.
        run("ip -n internet route add 10.87.64.0/22 via 198.51.100.1");
        run("ip -n internet -6 route add fd87:64::/64 via 2001:db8::1");
        for resolver in [RESOLVER, FOREIGN_RESOLVER] {
            resolve("internet", ip(resolver), PRIVATE.parse().unwrap());
        }
        serve(HOST, SocketAddr::new(ip("::"), PORT));
        let home = home(lab);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (daemon, one, two) = runtime.block_on(async {
            let daemon = home.start().await;
            let client = daemon.client().await;
            let made = async |id| {
                client.create(create(id)).await.unwrap_or_else(|e| panic!("{e:?}\n{}", home.log())).clone
            };
            let (one, two) = (made("one").await, made("two").await);
            (daemon, one, two)
        });
        let (inside, other) = (namespace(&home, &one), namespace(&home, &two));
        serve(&other, SocketAddr::new(ip("::"), PORT));
        serve(&inside, SocketAddr::new(ip("::"), 8080));

        // Public, both families; names by the one resolver.
        let public = [ip(PUBLIC), ip(PUBLIC6)];
        until_reached(&inside, &public);
        assert!(resolves(&inside, ip(RESOLVER)), "the clone's resolver answers");
        assert!(!resolves(&inside, ip(FOREIGN_RESOLVER)), "another resolver does not");

        // Everything else: it answers the host, and not the clone.
        let denied: Vec<IpAddr> = DENIED.iter().map(|address| ip(address)).collect();
        until_reached(Path::new(HOST), &denied);
        assert_eq!(reached(&inside, &denied), [] as [IpAddr; 0]);
        let mut near =
            vec![ip("198.51.100.1"), ip("2001:db8::1"), ip("10.87.64.1"), ip("fd87:64::1"), two.ip.into()];
        near.extend(two.ip6.map(IpAddr::V6));
        assert_eq!(reached(&inside, &near), [] as [IpAddr; 0], "the host's own addresses and another clone");
        let mapped: IpAddr = "::ffff:10.1.2.3".parse().unwrap();
        assert_eq!(reached(&inside, &[mapped]), [] as [IpAddr; 0]);

        // The browser: by redirect and by a name that leads elsewhere than it says.
        let mut page = Page::open(one.endpoint.as_deref().unwrap());
        let (title, problem) = page.load(&format!("http://name.example:{PORT}/"), LIMIT);
        assert_eq!((title.as_str(), problem.as_str()), ("rendered", ""), "by name\n{}", home.log());
        for url in
            [format!("http://{PUBLIC}:{PORT}/redirect/{PRIVATE}"), format!("http://rebind.example:{PORT}/")]
        {
            // What is dropped answers nothing, and a browser is patient.
            let (title, problem) = page.load(&url, Duration::from_secs(3));
            assert!(title.is_empty() && !problem.is_empty(), "{url}: {title:?} {problem:?}");
        }

        // Who reaches the clone: root on this host, and nobody else.
        let ingress = |from: &Path| reaches(from, one.ip.into(), 8080, PATIENCE);
        assert!(ingress(Path::new(HOST)), "the control plane reaches browserd's port");
        assert!(!ingress(Path::new("/run/netns/internet")), "the Internet does not");
        assert!(!ingress(&other), "another clone does not");
        let dial = format!("exec 3<>/dev/tcp/{}/8080", one.ip);
        let dialled = |uid: u32| {
            let mut bash = Command::new("timeout");
            bash.args(["1", "bash", "-c", &dial]).uid(uid).stderr(Stdio::null());
            bash.status().unwrap().success()
        };
        assert!(dialled(0) && !dialled(65534), "another user of this host does not");

        // A lost set cuts the clone off until hostd has put it back. It never opens anything.
        run("nft flush set inet hostd browser_tasks");
        runtime.block_on(until("the clone is a member again", async || {
            reaches(&inside, ip(PUBLIC), PORT, PATIENCE)
        }));
        assert_eq!(reached(&inside, &denied), [] as [IpAddr; 0]);

        lost_ruleset(&inside, &one);
        runtime.block_on(async {
            let client = daemon.client().await;
            until("the rules are back", async || {
                client
                    .status(StatusParams::default())
                    .await
                    .is_ok_and(|status| status.egress == EgressHealth::Ok)
            })
            .await;
            until("the clone is let out again", async || {
                [PUBLIC, PUBLIC6].iter().all(|address| reaches(&inside, ip(address), PORT, PATIENCE))
            })
            .await;
        });
        assert_eq!(reached(&inside, &denied), [] as [IpAddr; 0]);
        runtime.block_on(async {
            let client = daemon.client().await;
            for clone in [one, two] {
                let (name, clone_id) = (clone.name, clone.clone_id.unwrap());
                client.destroy(DestroyParams::new(name, clone_id)).await.unwrap();
            }
            daemon.stop().await;
        });
    });
}

/// hostd does not run and the host has no rules: only the rules in the clone's own network namespace are left.
#[test]
fn a_clone_stays_confined_while_hostd_is_stopped_and_the_rules_are_gone() {
    in_private_machine("a_clone_stays_confined_while_hostd_is_stopped_and_the_rules_are_gone", |lab| {
        for address in DENIED {
            let prefix = if ip(address).is_ipv4() { 32 } else { 128 };
            run(&format!("ip -n internet addr add {address}/{prefix} dev lo"));
        }
        // Without rules there is no address translation.
        run("ip -n internet route add 10.87.64.0/22 via 198.51.100.1");
        run("ip -n internet -6 route add fd87:64::/64 via 2001:db8::1");
        serve(HOST, SocketAddr::new(ip("::"), PORT));
        let home = home(lab);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (daemon, clone) = runtime.block_on(async {
            let daemon = home.start().await;
            let client = daemon.client().await;
            let made = client.create(create("one")).await;
            (daemon, made.unwrap_or_else(|e| panic!("{e:?}\n{}", home.log())).clone)
        });
        let inside = namespace(&home, &clone);
        runtime.block_on(until("the clone reaches the public", async || {
            reaches(&inside, ip(PUBLIC), PORT, PATIENCE)
        }));

        daemon.signal(nix::sys::signal::Signal::SIGSTOP);
        run("nft flush ruleset");
        // Another program's rules keep connection tracking on.
        run("nft add table inet other");
        run("nft add chain inet other forward { type filter hook forward priority 0 ; }");
        run("nft add rule inet other forward ct state established accept");
        let mut forbidden: Vec<IpAddr> = DENIED.iter().map(|address| ip(address)).collect();
        forbidden.extend([ip("198.51.100.1"), ip("2001:db8::1"), ip("10.87.64.1"), ip("fd87:64::1")]);
        until_reached(Path::new(HOST), &forbidden);
        assert!(
            reaches(&inside, ip(PUBLIC), PORT, PATIENCE),
            "the link is up and nothing on the host filters"
        );
        assert_eq!(reached(&inside, &forbidden), [] as [IpAddr; 0]);

        // A connection that was made without rules does not survive their return.
        let policy = Policy::try_from(PolicySpec::new(vec!["10.87.64.0/22".parse().unwrap()])).unwrap();
        let firewall = Firewall::new(policy);
        let tracked = || firewall.connections(&[ip(PUBLIC)]).unwrap();
        assert!(tracked() > 0, "the public connection is tracked");
        daemon.signal(nix::sys::signal::Signal::SIGCONT);
        runtime.block_on(async {
            let client = daemon.client().await;
            until("the rules are back", async || {
                let rules = Command::new("/usr/sbin/nft").args(["list", "table", "inet", "hostd"]).output();
                let status = client.status(StatusParams::default()).await;
                rules.unwrap().status.success()
                    && status.is_ok_and(|status| status.egress == EgressHealth::Ok)
            })
            .await;
            assert_eq!(tracked(), 0, "{}", home.log());
            until("the clone reaches the public again", async || {
                reaches(&inside, ip(PUBLIC), PORT, PATIENCE)
            })
            .await;
            client.destroy(DestroyParams::new(clone.name, clone.clone_id.unwrap())).await.unwrap();
            daemon.stop().await;
        });
    });
}

/// An address that the host gets after a clone was made is blocked by the clone's own rules too: while hostd runs by the
/// kernel's news, long before the next inspection, and what came while hostd did not run at its start.
#[test]
fn an_address_that_the_host_gets_later_is_blocked_in_existing_clones() {
    in_private_machine("an_address_that_the_host_gets_later_is_blocked_in_existing_clones", |lab| {
        run("ip -n internet route add 10.87.64.0/22 via 198.51.100.1");
        run("ip -n internet -6 route add fd87:64::/64 via 2001:db8::1");
        serve(HOST, SocketAddr::new(ip("::"), PORT));
        let settings = lab.settings();
        let rare = "lifecycle.reconcile_interval_ms=3600000";
        let settings: Vec<&str> = settings.iter().map(String::as_str).chain([rare]).collect();
        let home = Home::new(&settings);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (daemon, clone) = runtime.block_on(async {
            let daemon = home.start().await;
            let client = daemon.client().await;
            until("the host was inspected", async || {
                client.status(StatusParams::default()).await.unwrap().egress == EgressHealth::Ok
            })
            .await;
            let made = client.create(create("one")).await;
            (daemon, made.unwrap_or_else(|e| panic!("{e:?}\n{}", home.log())).clone)
        });
        let inside = namespace(&home, &clone);
        let blocks = |address: &str| {
            let set = if ip(address).is_ipv4() { "host4" } else { "host6" };
            let mut list = Command::new("nsenter");
            list.arg(format!("--net={}", inside.display()));
            let listed = list.args(["nft", "list", "set", "inet", "egress", set]).output().unwrap();
            String::from_utf8(listed.stdout).unwrap().contains(address)
        };
        let (later, later6, meanwhile) = ("203.0.113.77", "2001:db8:7::7", "203.0.113.78");
        assert!(blocks("198.51.100.1") && !blocks(later) && !blocks(later6) && !blocks(meanwhile));
        run(&format!("ip addr add {later}/32 dev lo"));
        run(&format!("ip -6 addr add {later6}/128 dev lo nodad"));
        runtime.block_on(until("the clone's own rules block them", async || blocks(later) && blocks(later6)));

        let daemon = runtime.block_on(async {
            daemon.kill9().await;
            run(&format!("ip addr add {meanwhile}/32 dev lo"));
            assert!(!blocks(meanwhile));
            home.start().await
        });
        runtime.block_on(until("what came meanwhile is blocked", async || blocks(meanwhile)));

        // Packet by packet, with nothing else in the way.
        daemon.signal(nix::sys::signal::Signal::SIGSTOP);
        run("nft flush ruleset");
        let addresses = [ip(later), ip(later6), ip(meanwhile)];
        until_reached(Path::new(HOST), &addresses);
        until_reached(&inside, &[ip(PUBLIC)]);
        assert_eq!(reached(&inside, &addresses), [] as [IpAddr; 0]);
        daemon.signal(nix::sys::signal::Signal::SIGCONT);
        runtime.block_on(async {
            let client = daemon.client().await;
            client.destroy(DestroyParams::new(clone.name, clone.clone_id.unwrap())).await.unwrap();
            daemon.stop().await;
        });
    });
}

/// Without any rule everything would be open. hostd has to notice by the kernel's news, not by its timer.
fn lost_ruleset(inside: &Path, clone: &CloneInfo) {
    let link = format!("/sys/class/net/{}/flags", clone.name.as_str().replace("browsertask", "bt"));
    // The private machine has the network of the test, but not its own /sys.
    run("mount -t sysfs lab /sys");
    let is_up = || {
        let flags = std::fs::read_to_string(&link).unwrap();
        u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16).unwrap() & 1 == 1
    };
    assert!(is_up());
    run("nft flush ruleset");
    let lost = Instant::now();
    let mut down = None;
    while lost.elapsed() < Duration::from_secs(2) && down.is_none() {
        down = (!is_up()).then(|| lost.elapsed());
        std::thread::sleep(Duration::from_micros(200));
    }
    // It may have been down and up again between two looks; what counts is that nothing private answers.
    println!("after the ruleset was lost the link was down within {down:?}");
    let open = reaches(inside, ip(PRIVATE), PORT, Duration::from_millis(300));
    assert!(!open, "the private network is open {:?} after the ruleset was lost", lost.elapsed());
}
