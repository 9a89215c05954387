//! One clone opens as many connections as it can. Its limits hold, and nobody else is affected.

use super::{add, address, clone, firewall};
use crate::probe::reaches;
use crate::world::{CLONES, World};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, sendto, socket,
};
use pf::ConnectionLimits;
use pf::linux::Firewall;
use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// So high that it is never reached.
const UNLIMITED: u32 = 1_000_000;

fn tracked(world: &World, firewall: &Firewall, index: usize) -> usize {
    world.host.inside(|| firewall.connections(&clone(index)).expect("readable"))
}

/// Sends one UDP datagram each to many destinations of both families: each is a new flow.
fn udp_flood(flows: u16) {
    let v4 = UdpSocket::bind("0.0.0.0:0").expect("bound");
    let v6 = UdpSocket::bind("[::]:0").expect("bound");
    for port in 1000..1000 + flows / 2 {
        // A refusal of an earlier datagram may be reported here; the datagram itself is what counts.
        let _ = v4.send_to(b"flood", ("93.184.216.34", port));
        let _ = v6.send_to(b"flood", ("2606:4700::1111", port));
    }
}

/// Sends ICMP echo requests with many identifiers: each is a new flow.
fn icmp_flood(flows: u16) {
    let raw =
        socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Icmp).expect("root");
    let target = SockaddrStorage::from("93.184.216.34:0".parse::<SocketAddr>().unwrap());
    for id in 1..=flows {
        let [high, low] = id.to_be_bytes();
        let [sum_high, sum_low] = (!(0x0800_u16 + id)).to_be_bytes();
        let request = [8, 0, sum_high, sum_low, high, low, 0, 0];
        sendto(raw.as_raw_fd(), &request, &target, MsgFlags::empty()).expect("it leaves the clone");
    }
}

fn others_connect(world: &World, firewall: &Firewall) {
    for target in ["93.184.216.34:80", "[2606:4700::1111]:80"] {
        assert!(world.clones[1].inside(|| reaches(target)), "the other clone to {target}");
        assert!(world.host.inside(|| reaches(target)), "the host to {target}");
    }
    let browserd = format!("{}:8080", CLONES[0].1);
    assert!(world.host.inside(|| reaches(&browserd)), "the control plane to the clone that floods");
    world.host.inside(|| firewall.prove().expect("the rules are verified whatever the limits have counted"));
}

#[test]
fn a_clone_cannot_have_more_connections_than_its_limit() {
    const OPEN: u32 = 200;
    // The kernel forgets to count an entry that is not confirmed within two ticks (nf_conncount, `find_or_evict`), which
    // happens when the machine is busy.
    const MOST: usize = OPEN as usize + OPEN as usize / 4;
    let world = World::new();
    let firewall = firewall(|spec| {
        spec.connections = ConnectionLimits { open: OPEN, new_per_second: UNLIMITED, burst: UNLIMITED };
    });
    world.host.inside(|| firewall.load(&BTreeSet::new()).expect("loads"));
    let mut watch = world.host.inside(|| firewall.watch().expect("watching"));
    add(&firewall, &world, 0);
    add(&firewall, &world, 1);
    while watch.wait(Duration::from_millis(100)).expect("readable").is_some() {}

    world.clones[0].inside(|| {
        udp_flood(3000);
        icmp_flood(1000);
    });
    let seen = tracked(&world, &firewall, 0);
    assert!(seen <= MOST && seen > OPEN as usize / 2, "{seen} entries");
    let refused = world.host.inside(|| firewall.refused().expect("readable"));
    assert!(refused.count >= 3500 && refused.rate == 0, "{refused:?}");
    assert!(!world.clones[0].inside(|| reaches("93.184.216.34:80")), "TCP is refused too");
    others_connect(&world, &firewall);
    assert!(tracked(&world, &firewall, 0) <= MOST + 1, "only the control plane's call was added");
    assert_eq!(watch.changes().expect("readable"), None, "packets cause no events");

    // What it ends, it may open again.
    world.host.inside(|| firewall.end_connections(&clone(0)).expect("ended"));
    assert!((0..5).any(|_| world.clones[0].inside(|| reaches("93.184.216.34:80"))));

    // Nothing of what was counted is left when it is removed.
    let counted = |link: &str| {
        let sets = ["connection_rate", "connection_count"];
        sets.map(|set| {
            world.host.output("/usr/sbin/nft", &format!("list set inet hostd {set}")).contains(link)
        })
    };
    assert_eq!((counted(CLONES[0].0), counted(CLONES[1].0)), ([true; 2], [true; 2]));
    for _ in 0..2 {
        world.host.inside(|| firewall.remove(&clone(0)).expect("removed, and again"));
        assert_eq!((counted(CLONES[0].0), counted(CLONES[1].0)), ([false; 2], [true; 2]));
    }
    world.host.inside(|| firewall.prove().expect("as rendered"));
}

#[test]
fn a_clone_cannot_open_connections_faster_than_its_limit() {
    const BURST: u32 = 50;
    let world = World::new();
    let firewall = firewall(|spec| {
        spec.connections = ConnectionLimits { open: UNLIMITED, new_per_second: 1, burst: BURST };
    });
    world.host.inside(|| firewall.load(&BTreeSet::new()).expect("loads"));
    add(&firewall, &world, 0);
    add(&firewall, &world, 1);
    let started = Instant::now();
    world.clones[0].inside(|| udp_flood(4000));
    let seen = tracked(&world, &firewall, 0) as u64;
    let allowed = u64::from(BURST) + started.elapsed().as_secs() + 1;
    assert!((u64::from(BURST)..=allowed).contains(&seen), "{seen} entries, {allowed} allowed");
    let refused = world.host.inside(|| firewall.refused().expect("readable"));
    assert!(refused.rate >= 3900 - allowed && refused.count == 0, "{refused:?}");
    others_connect(&world, &firewall);
}

#[test]
fn a_resolver_on_the_host_counts_towards_the_limit() {
    let world = World::new();
    let firewall = firewall(|spec| {
        spec.resolver = Some(address(super::GATEWAY));
        spec.connections = ConnectionLimits { open: 20, new_per_second: UNLIMITED, burst: UNLIMITED };
    });
    world.host.inside(|| firewall.load(&BTreeSet::new()).expect("loads"));
    add(&firewall, &world, 0);
    world.clones[0].inside(|| {
        for _ in 0..200 {
            let socket = UdpSocket::bind("0.0.0.0:0").expect("bound");
            let _ = socket.send_to(b"query", (super::GATEWAY, 53));
        }
    });
    let seen = tracked(&world, &firewall, 0);
    assert!((10..=20).contains(&seen), "{seen} entries");
}

#[test]
fn closed_connections_leave_connection_tracking_within_seconds() {
    let world = World::new();
    let firewall = firewall(|_| {});
    world.host.inside(|| firewall.load(&BTreeSet::new()).expect("loads"));
    add(&firewall, &world, 0);
    // The kernel's own setting keeps them for two minutes.
    let kept =
        world.host.output("/usr/bin/cat", "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_time_wait");
    assert_eq!(kept.trim(), "120");
    world.clones[0].inside(|| {
        for _ in 0..20 {
            drop(TcpStream::connect("93.184.216.34:80").expect("connected"));
        }
    });
    assert!(tracked(&world, &firewall, 0) > 0);
    let deadline = Instant::now() + Duration::from_secs(60);
    while tracked(&world, &firewall, 0) > 0 {
        assert!(Instant::now() < deadline, "{} entries are left", tracked(&world, &firewall, 0));
        std::thread::sleep(Duration::from_millis(200));
    }
}
