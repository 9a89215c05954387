//! Whoever is refused is told so at once: nobody waits for an answer that will not come.

use super::{add, address, clone, firewall};
use crate::world::{CLONES, CONTROL, GATEWAY, HOST_OUTSIDE, Netns, World};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

/// Far below the first retransmission of a TCP connection, which takes a second.
const AT_ONCE: Duration = Duration::from_millis(700);
const NOBODY: u32 = 65534;

/// How a connection fails, if it fails at once.
fn refusal(netns: &Netns, target: &str, user: u32) -> Result<ErrorKind, String> {
    let target: SocketAddr = target.parse().expect("an address and a port");
    netns.inside(|| {
        nix::unistd::setfsuid(user.into());
        let began = Instant::now();
        let error = match TcpStream::connect_timeout(&target, Duration::from_secs(5)) {
            Ok(_) => return Err(format!("{target} was reached")),
            Err(error) => error,
        };
        let took = began.elapsed();
        if took < AT_ONCE { Ok(error.kind()) } else { Err(format!("{target}: {error} after {took:?}")) }
    })
}

#[test]
fn a_clone_is_refused_at_once_by_either_barrier() {
    let world = World::new();
    let rules = firewall(|_| {});
    let gateway = format!("{GATEWAY}:80");
    let neighbour = format!("{}:80", CLONES[1].1);
    let outside = format!("{HOST_OUTSIDE}:80");
    let targets = [
        "10.1.2.3:80",
        "169.254.169.254:80",
        "100.64.1.1:443",
        "9.9.9.9:53",
        "9.9.9.9:853",
        "[fd12::1]:80",
        "[2620:fe::fe]:53",
        &gateway,
        &neighbour,
        &outside,
    ];
    world.host.inside(|| rules.load(&BTreeSet::new()).expect("loads"));
    let tracked = || world.host.inside(|| rules.connections(&clone(0)).expect("readable"));
    let before = tracked();
    let stranger = refusal(&world.clones[0], "93.184.216.34:80", 0);
    assert_eq!(stranger, Ok(ErrorKind::HostUnreachable), "a clone that was cut off");
    add(&rules, &world, 0);
    // The kernel sends six ICMP errors to one address at once.
    for target in &targets[..4] {
        let seen = refusal(&world.clones[0], target, 0);
        assert_eq!(seen, Ok(ErrorKind::HostUnreachable), "{target} by the host's rules");
    }
    assert_eq!(tracked(), before, "what is refused does not enter connection tracking");
    let filter = world.host.inside(|| rules.clone_filter().expect("translated"));
    world.clones[0].inside(|| filter.load(&[address(HOST_OUTSIDE)]).expect("loaded"));
    for _ in 0..3 {
        for target in targets {
            let seen = refusal(&world.clones[0], target, NOBODY);
            // An ICMP error tells a policy from a closed port. For IPv6 it would come a second later.
            let expected = if target.starts_with('[') {
                ErrorKind::ConnectionRefused
            } else {
                ErrorKind::HostUnreachable
            };
            assert_eq!(seen, Ok(expected), "{target} by the rules in the clone");
        }
    }
    // The same for datagrams: the kernel tells the sender.
    let told = world.clones[0].inside(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("bound");
        socket.set_read_timeout(Some(AT_ONCE)).expect("a timeout");
        socket.connect("10.1.2.3:443").expect("connected");
        socket.send(b"anybody?").and_then(|_| socket.recv(&mut [0; 16])).expect_err("refused").kind()
    });
    assert!(matches!(told, ErrorKind::PermissionDenied | ErrorKind::HostUnreachable), "{told:?}");
}

#[test]
fn callers_of_a_destroyed_clone_are_refused_at_once_and_strangers_get_no_answer() {
    let world = World::new();
    let rules = firewall(|_| {});
    world.host.inside(|| rules.load(&BTreeSet::new()).expect("loads"));
    let gone = "10.87.67.200:8080";
    assert_eq!(refusal(&world.host, gone, 0), Ok(ErrorKind::ConnectionRefused), "the host");
    assert_eq!(refusal(&world.host, "[fd87::abcd]:8080", 0), Ok(ErrorKind::ConnectionRefused), "by IPv6");
    assert_eq!(refusal(&world.control, gone, 0), Ok(ErrorKind::HostUnreachable), "the control plane");
    let stranger = refusal(&world.internet, gone, 0);
    assert!(stranger.as_ref().is_err_and(|why| why.contains("after")), "{stranger:?}");
    // A connection that was open when the clone was destroyed ends with the next packet.
    world.control.inside(|| TcpStream::connect((CLONES[0].1, 8080)).expect("the control plane calls"));
    let mut open = world.host.inside(|| TcpStream::connect((CLONES[0].1, 8080)).expect("the host calls"));
    world.host.ip(&format!("link delete {}", CLONES[0].0));
    open.set_read_timeout(Some(AT_ONCE)).expect("a timeout");
    std::io::Write::write_all(&mut open, b"still there?").expect("queued");
    let ended = std::io::Read::read(&mut open, &mut [0; 16]).expect_err("ended").kind();
    assert_eq!(ended, ErrorKind::ConnectionReset);
    world.host.inside(|| rules.end_connections(&clone(0)).expect("ended"));
    let destroyed = format!("{}:8080", CLONES[0].1);
    assert_eq!(refusal(&world.host, &destroyed, 0), Ok(ErrorKind::ConnectionRefused), "the host");
    assert_eq!(refusal(&world.control, &destroyed, 0), Ok(ErrorKind::HostUnreachable), "the control plane");
    let addresses = [clone(0)[0], clone(0)[1], address("10.87.67.200"), address("fd87::abcd")];
    let tracked = world.host.inside(|| rules.connections(&addresses).expect("readable"));
    assert_eq!(tracked, 0, "callers of a destroyed clone do not enter connection tracking");
}

#[test]
fn an_admitted_user_calls_browserd_and_others_are_refused_at_once() {
    let world = World::new();
    let rules = firewall(|_| {});
    world.host.inside(|| rules.load(&BTreeSet::new()).expect("loads"));
    for ip in [CLONES[0].1.to_owned(), format!("[{}]", CLONES[0].2)] {
        let browserd = format!("{ip}:8080");
        let seen = refusal(&world.host, &browserd, NOBODY);
        match ip.starts_with('[') {
            false => assert_eq!(seen, Ok(ErrorKind::HostUnreachable), "{browserd}"),
            // Linux takes an ICMP error of IPv6 for the first retransmission only.
            true => assert!(seen.is_err_and(|why| !why.ends_with("was reached")), "{browserd}"),
        }
    }
    let mut watch = world.host.inside(|| rules.watch().expect("watching"));
    world.host.inside(|| rules.admit(NOBODY).expect("admitted"));
    let change = watch.wait(Duration::from_secs(5)).expect("readable").expect("an event");
    assert!(change.members && !change.rules && !change.others, "{change:?}");
    let reached = |user| refusal(&world.host, &format!("{}:8080", CLONES[0].1), user);
    let is_reached = |user| reached(user).is_err_and(|why| why.ends_with("was reached"));
    assert!(is_reached(NOBODY), "{:?}", reached(NOBODY));
    assert_eq!(reached(NOBODY - 1), Ok(ErrorKind::HostUnreachable), "another user");
    world.host.inside(|| {
        rules.prove().expect("an admitted user does not count as a change");
        rules.load(&BTreeSet::new()).expect("loads again");
    });
    assert!(is_reached(NOBODY) && is_reached(0), "admitted users stay after another load");
}

#[test]
fn a_network_of_the_control_plane_calls_browserd() {
    let world = World::new();
    let rules = firewall(|spec| {
        spec.control_plane.retain(|caller| caller.addr() != address(CONTROL));
        spec.control_plane.push("10.50.0.0/24".parse().unwrap());
    });
    world.host.inside(|| rules.load(&BTreeSet::new()).expect("loads"));
    let filter = world.host.inside(|| rules.clone_filter().expect("translated"));
    world.clones[0].inside(|| filter.load(&[]).expect("loaded"));
    let calls = |netns: &Netns| netns.inside(|| super::reaches(&format!("{}:8080", CLONES[0].1)));
    assert!(calls(&world.control) && calls(&world.host) && !calls(&world.internet));
    world.host.inside(|| rules.prove().expect("as rendered"));
}
