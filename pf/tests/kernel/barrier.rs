//! The rules inside a clone's network namespace hold while the host has no rules at all.

use super::{Probe, RESOLVER, firewall, probes};
use crate::probe::{reachable, reaches};
use crate::world::{CLONES, HOST_OUTSIDE, HOST_OUTSIDE6, Netns, World};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, setsockopt, socket, sockopt};
use nix::sys::time::TimeVal;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const NOBODY: u32 = 65534;
const FORBIDDEN: [&str; 8] = [
    "10.1.2.3:80",
    "192.168.7.7:80",
    "169.254.169.254:80",
    "100.64.1.1:80",
    "9.9.9.9:53",
    "[fd12::1]:80",
    "[64:ff9b::a01:203]:80",
    "[2620:fe::fe]:53",
];

/// Loads the barrier into the first clone.
fn load(world: &World) {
    let filter = world.host.inside(|| firewall(|_| {}).clone_filter().expect("translated"));
    let host: Vec<IpAddr> = [HOST_OUTSIDE, HOST_OUTSIDE6].map(|ip| ip.parse().unwrap()).to_vec();
    world.clones[0].inside(|| filter.load(&host).expect("loaded"));
}

/// As the clone's user, through every way that a socket has to choose its route.
fn send(target: &str, payload: &[u8]) {
    let any = if target.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
    let target: SocketAddr = target.parse().unwrap();
    let plain = UdpSocket::bind(any).expect("bound");
    let _ = plain.send_to(payload, target);
    let bound = UdpSocket::bind(any).expect("bound");
    setsockopt(&bound, sockopt::BindToDevice, &"eth0".into()).expect("users may bind to a device");
    let _ = bound.send_to(payload, target);
    let direct = UdpSocket::bind(any).expect("bound");
    setsockopt(&direct, sockopt::DontRoute, &true).expect("an option");
    let _ = direct.send_to(payload, target);
}

#[test]
fn without_rules_on_the_host_a_clone_reaches_only_public_addresses() {
    let world = World::new();
    let probes: Vec<Probe> = probes();
    let targets: Vec<SocketAddr> = probes.iter().map(|probe| probe.target).collect();
    let before = world.clones[0].inside(|| reachable(&targets));
    load(&world);
    let after = world.clones[0].inside(|| reachable(&targets));
    let mut wrong = Vec::new();
    for (index, probe) in probes.iter().enumerate() {
        let control = before[index] || probe.unroutable || probe.what.contains("unused address");
        if !control || after[index] != probe.open {
            wrong.push(format!("{} ({}): {} {}", probe.target, probe.what, before[index], after[index]));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(
        world.control.inside(|| reaches(&format!("{}:8080", CLONES[0].1))),
        "the control plane calls browserd"
    );
    assert!(world.clones[0].inside(|| reaches(&format!("{RESOLVER}:53"))));
    assert!(world.clones[1].inside(|| reaches("10.0.0.1:80")), "a clone without the barrier is not blocked");
}

#[test]
fn the_port_for_answers_opens_no_connections() {
    const PORT: u16 = 7777;
    let world = World::new();
    let connect = || {
        world.clones[0].inside(|| {
            let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)
                .expect("a socket");
            setsockopt(&socket, sockopt::SendTimeout, &TimeVal::new(1, 0)).expect("an option");
            setsockopt(&socket, sockopt::ReuseAddr, &true).expect("an option");
            bind(socket.as_raw_fd(), &SockaddrIn::new(0, 0, 0, 0, PORT)).expect("bound");
            nix::sys::socket::connect(socket.as_raw_fd(), &SockaddrIn::new(10, 87, 64, 1, 80)).is_ok()
        })
    };
    assert!(connect(), "without the barrier the host answers");
    let rules = firewall(|spec| spec.browserd_port = PORT);
    let filter = world.host.inside(|| rules.clone_filter().expect("translated"));
    world.clones[0].inside(|| filter.load(&[]).expect("loaded"));
    assert!(!connect(), "a first packet from browserd's port is dropped");
}

#[test]
fn no_forbidden_packet_passes_while_the_hosts_rules_come_and_go() {
    let world = World::new();
    let rules = firewall(|_| {});
    world.clones[0].inside(|| FORBIDDEN.iter().for_each(|target| send(target, b"before")));
    assert!(world.was_received(b"before").is_some(), "without the barrier the packets arrive");
    load(&world);
    let stop = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let storm = scope.spawn(|| {
            world.clones[0].inside(|| {
                nix::unistd::setfsuid(NOBODY.into());
                let mut rounds = 0u32;
                while !stop.load(Ordering::Relaxed) {
                    FORBIDDEN.iter().for_each(|target| send(target, b"forbidden"));
                    rounds += 1;
                }
                rounds
            })
        });
        for _ in 0..10 {
            world.host.inside(|| rules.load(&BTreeSet::new()).expect("loads"));
            world.host.nft("flush ruleset");
            std::thread::sleep(Duration::from_millis(100));
        }
        stop.store(true, Ordering::Relaxed);
        storm.join().expect("the storm ends")
    });
    assert!(sent > 10, "{sent} rounds are no storm");
    assert_eq!(world.was_received(b"forbidden"), None);
    assert!(world.clones[0].inside(|| reaches("93.184.216.34:80")), "the public is reached without rules");
}

#[test]
fn the_clones_user_cannot_remove_the_barrier() {
    let world = World::new();
    load(&world);
    let run = |line: &str| {
        let mut command = Command::new("/usr/bin/setpriv");
        // All capabilities, in a user namespace of its own.
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]);
        command.args(["/usr/bin/unshare", "--user", "--map-root-user", "--"]).args(line.split(' '));
        command.stdin(Stdio::null()).process_group(0);
        world.clones[0].inside(|| command.output().expect("it starts"))
    };
    let id = run("/usr/bin/id -u");
    assert!(id.status.success() && id.stdout == b"0\n", "{id:?}: the user namespace works");
    for attack in [
        "/usr/sbin/nft flush ruleset",
        "/usr/sbin/nft delete table inet egress",
        "/usr/sbin/nft insert rule inet egress output accept",
        "/usr/sbin/ip link set eth0 down",
        "/usr/sbin/ip addr add 10.87.64.99/32 dev eth0",
        "/usr/sbin/ip neigh add 10.1.2.3 lladdr 02:00:00:00:00:01 dev eth0",
        "/usr/sbin/ip route add 10.1.2.3/32 dev eth0",
    ] {
        let output = run(attack);
        assert!(!output.status.success(), "{attack}: {output:?}");
    }
    assert!(!world.clones[0].inside(|| reaches("10.0.0.1:80")));
}

#[test]
fn loading_the_barrier_is_fast_and_exact() {
    let rules = firewall(|_| {});
    let namespace = Netns::new();
    let filter = namespace.inside(|| rules.clone_filter().expect("translated"));
    let (by_nft, replayed) = (Netns::new(), Netns::new());
    let text = pf::clone_rules::render(rules.policy());
    let file = std::env::temp_dir().join(format!("clone-rules-{}", std::process::id()));
    std::fs::write(&file, text).expect("written");
    by_nft.nft(&format!("-f {}", file.display()));
    std::fs::remove_file(&file).expect("removed");
    replayed.inside(|| filter.load(&[]).expect("loaded"));
    let mut times: Vec<Duration> = (0..20)
        .map(|_| {
            let fresh = Netns::new();
            fresh.inside(|| {
                let start = Instant::now();
                filter.load(&[]).expect("loaded");
                start.elapsed()
            })
        })
        .collect();
    times.sort();
    println!("the barrier is loaded in {:?} at best, {:?} in the median", times[0], times[10]);
    let list =
        |netns: &Netns| netns.output("/usr/sbin/nft", "-n list ruleset").replace("\t\tauto-merge\n", "");
    assert!(list(&by_nft).contains("policy drop"));
    assert_eq!(list(&by_nft), list(&replayed), "the kernel has the same rules as after nft -f");
    replayed.inside(|| filter.load(&[]).expect_err("a second load would double the rules"));
}
