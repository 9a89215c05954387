//! Tests the rendered rules with packets on the running kernel, in network namespaces of their own.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // The tests parse their own constants.

mod barrier;
mod limits;
mod probe;
mod refused;
mod wire;
mod world;

use pf::linux::{Firewall, FirewallError};
use pf::{Policy, PolicySpec, Slot, deny};
use probe::{reachable, reaches};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};
use world::{CLONES, CONTROL, GATEWAY, GATEWAY6, HOST_OUTSIDE, HOST_OUTSIDE6, World};

const RESOLVER: &str = "10.53.0.53";
const HOST_ELSEWHERE: &str = "198.51.100.77";

fn spec() -> PolicySpec {
    let mut spec = PolicySpec::new(vec!["10.87.64.0/22".parse().unwrap(), "fd87::/64".parse().unwrap()]);
    spec.slots = CLONES
        .into_iter()
        .map(|(interface, ip, ip6)| Slot {
            interface: interface.into(),
            ip: ip.parse().unwrap(),
            ip6: Some(ip6.parse().unwrap()),
        })
        .collect();
    spec.resolver = Some(RESOLVER.parse().unwrap());
    spec.host = vec![HOST_ELSEWHERE.parse().unwrap()];
    spec.control_plane = [GATEWAY, GATEWAY6, CONTROL].map(|ip| address(ip).into()).to_vec();
    spec.external = Some("ext0".into());
    spec
}

fn firewall(change: impl FnOnce(&mut PolicySpec)) -> Firewall {
    let mut spec = spec();
    change(&mut spec);
    Firewall::new(Policy::try_from(spec).expect("a valid policy"))
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Slots 1 to `last`, with hostd's names and addresses.
fn slots_up_to(last: u16) -> Vec<Slot> {
    let slot = |slot: u16| Slot {
        interface: format!("bt{slot:03}"),
        ip: (u32::from_be_bytes([10, 87, 64, 15]) + u32::from(slot)).into(),
        ip6: Some(((0xfd87_u128 << 112) + 15 + u128::from(slot)).into()),
    };
    (1..=last).map(slot).collect()
}

/// Both addresses of a clone.
fn clone(index: usize) -> [IpAddr; 2] {
    [address(CLONES[index].1), address(CLONES[index].2)]
}

fn add(firewall: &Firewall, world: &World, index: usize) {
    world.host.inside(|| firewall.add(&clone(index)).expect("added"));
}

/// A destination, and whether a member may reach it.
struct Probe {
    target: SocketAddr,
    what: String,
    open: bool,
    /// The kernel does not route it even without rules: the clone's own loopback, multicast without a router.
    unroutable: bool,
}

fn probes() -> Vec<Probe> {
    let mut probes = Vec::new();
    let mut probe = |target: &str, what: &str, open| {
        let target = target.parse().unwrap_or_else(|_| panic!("{target}"));
        probes.push(Probe { target, what: what.into(), open, unroutable: false });
    };
    for public in
        ["93.184.216.34:80", "1.1.1.1:80", "203.0.113.1:80", "[2606:4700::1111]:80", "[2001:db8:1::1]:80"]
    {
        probe(public, "public", true);
    }
    probe(&format!("{RESOLVER}:53"), "the resolver", true);
    probe(&format!("{RESOLVER}:80"), "the resolver, another port", false);
    for foreign in ["9.9.9.9:53", "9.9.9.9:853", "10.53.0.54:53", "[2620:fe::fe]:53", "[2620:fe::fe]:853"] {
        probe(foreign, "a foreign resolver", false);
    }
    for host in [GATEWAY, HOST_OUTSIDE, "10.50.0.1", HOST_ELSEWHERE] {
        for port in [53, 80, 8080] {
            probe(&format!("{host}:{port}"), "the host's own address", false);
        }
    }
    for host in [GATEWAY6, HOST_OUTSIDE6] {
        probe(&format!("[{host}]:80"), "the host's own address", false);
    }
    for port in [80, 8080] {
        probe(&format!("{}:{port}", CLONES[1].1), "another clone", false);
        probe(&format!("[{}]:{port}", CLONES[1].2), "another clone", false);
    }
    probe("10.87.65.200:80", "an unused address of the clones' network", false);
    probe("[::ffff:10.0.0.1]:80", "IPv4-mapped, converted by the socket", false);
    probe("[::ffff:169.254.169.254]:80", "IPv4-mapped metadata, converted by the socket", false);
    let documentation = deny::Kind::Documentation;
    for range in deny::ranges().iter().filter(|range| range.reason.kind != documentation) {
        // The first and the last host address, or the only one.
        let inner = [range.net.network(), range.net.broadcast()].map(|edge| match edge {
            IpAddr::V4(v4) if range.net.prefix_len() < 32 => {
                let step = if edge == range.net.network() { 1 } else { u32::MAX };
                IpAddr::V4(u32::from(v4).wrapping_add(step).into())
            }
            IpAddr::V6(v6) if range.net.prefix_len() < 128 => {
                let step = if edge == range.net.network() { 0x0a00_0001 } else { u128::MAX };
                IpAddr::V6(u128::from(v6).wrapping_add(step).into())
            }
            _ => edge,
        });
        let distinct: BTreeSet<IpAddr> = inner.into_iter().collect();
        for ip in distinct {
            let target = SocketAddr::new(ip, 80);
            let unroutable = match ip {
                IpAddr::V4(v4) => {
                    v4.is_loopback() || v4.is_multicast() || v4.is_broadcast() || v4.octets()[0] == 0
                }
                IpAddr::V6(v6) => {
                    v6.is_multicast() || v6.is_unicast_link_local() || v6.segments()[..7] == [0; 7]
                }
            };
            probes.push(Probe {
                target,
                what: format!("{}: {}", range.net, range.reason),
                open: false,
                unroutable,
            });
        }
    }
    probes
}

#[test]
fn only_members_reach_the_internet_and_only_public_addresses() {
    let world = World::new();
    let firewall = firewall(|_| {});
    let probes = probes();
    let targets: Vec<SocketAddr> = probes.iter().map(|probe| probe.target).collect();
    let from_clone = || world.clones[0].inside(|| reachable(&targets));

    let without_rules = from_clone();
    world.host.inside(|| firewall.load(&BTreeSet::new()).expect("loads"));
    let stranger = from_clone();
    add(&firewall, &world, 1);
    let neighbour_is_member = from_clone();
    add(&firewall, &world, 0);
    let member = from_clone();
    world.host.nft("flush set inet hostd browser_tasks");
    world.host.nft("flush set inet hostd browser_tasks6");
    let lost_set = from_clone();

    let mark = |open: bool| if open { "REACHED" } else { "-" };
    println!("{:<44} {:>8} {:>8} {:>8} {:>8}  what", "target", "no rules", "stranger", "member", "lost set");
    let mut wrong = Vec::new();
    for (index, probe) in probes.iter().enumerate() {
        let seen = [without_rules[index], stranger[index], member[index], lost_set[index]];
        let [a, b, c, d] = seen.map(mark);
        println!("{:<44} {a:>8} {b:>8} {c:>8} {d:>8}  {}", probe.target.to_string(), probe.what);
        // Without rules the target must answer; otherwise "blocked" would prove nothing.
        let control = seen[0] || probe.unroutable || probe.what.contains("unused address");
        let closed = !seen[1] && !neighbour_is_member[index] && !seen[3];
        if !control || !closed || seen[2] != probe.open {
            wrong.push(format!("{} ({}): {seen:?}", probe.target, probe.what));
        }
    }
    println!("{} targets, {} open for members", probes.len(), member.iter().filter(|open| **open).count());
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn only_the_control_plane_calls_browserd() {
    let world = World::new();
    let firewall = firewall(|_| {});
    world.host.inside(|| firewall.load(&BTreeSet::new()).expect("loads"));
    let ports = |ip: &str| [8080, 80].map(|port| SocketAddr::new(address(ip), port));
    for is_member in [false, true] {
        if is_member {
            add(&firewall, &world, 0);
        }
        for ip in [CLONES[0].1, CLONES[0].2] {
            let targets = ports(ip);
            let root = world.host.inside(|| reachable(&targets));
            assert_eq!(root, [true, false], "root on the host to {ip}, member: {is_member}");
            let nobody = world.host.inside(|| {
                nix::unistd::setfsuid(65534.into());
                reachable(&targets)
            });
            assert_eq!(nobody, [false, false], "another user on the host to {ip}");
            let internet = world.internet.inside(|| reachable(&targets));
            assert_eq!(internet, [false, false], "the Internet to {ip}");
            let neighbour = world.clones[1].inside(|| reachable(&targets));
            assert_eq!(neighbour, [false, false], "another clone to {ip}");
        }
        let remote = world.control.inside(|| reachable(&ports(CLONES[0].1)));
        assert_eq!(remote, [true, false], "the remote control plane, member: {is_member}");
    }
    world.host.nft("flush ruleset");
    assert!(world.internet.inside(|| reaches(&format!("{}:8080", CLONES[0].1))), "the rules blocked it");
}

#[test]
fn only_members_reach_a_resolver_on_the_host() {
    let world = World::new();
    let firewall = firewall(|spec| spec.resolver = Some(address(GATEWAY)));
    world.host.inside(|| firewall.load(&BTreeSet::new()).expect("loads"));
    let targets = [53, 80, 853].map(|port| SocketAddr::new(address(GATEWAY), port));
    assert_eq!(world.clones[0].inside(|| reachable(&targets)), [false, false, false]);
    add(&firewall, &world, 0);
    assert_eq!(world.clones[0].inside(|| reachable(&targets)), [true, false, false]);
    assert_eq!(world.clones[1].inside(|| reachable(&targets)), [false, false, false]);
    assert!(
        !world.clones[0].inside(|| reaches(&format!("{RESOLVER}:53"))),
        "it is not the configured resolver"
    );
}

#[test]
fn packets_with_a_spoofed_source_are_dropped() {
    let world = World::new();
    let firewall = firewall(|_| {});
    let target = "93.184.216.34:80";
    let send_as = |from: &str, payload: &str| {
        world.clones[0].ip(&format!("addr replace {from}/32 dev eth0"));
        world.clones[0].inside(|| {
            let socket = UdpSocket::bind((from, 0)).expect("the address exists");
            socket.send_to(payload.as_bytes(), target).expect("it leaves the clone");
        });
    };
    let neighbour = CLONES[1].1;
    send_as(neighbour, "spoofed without rules");
    let seen = world.was_received(b"spoofed without rules").expect("arrives without rules");
    assert_eq!(seen.0, address(neighbour));

    world.host.inside(|| firewall.load(&BTreeSet::new()).expect("loads"));
    for index in [0, 1] {
        add(&firewall, &world, index);
    }
    send_as(CLONES[0].1, "own");
    let seen = world.was_received(b"own").expect("its own address is accepted");
    assert_eq!(seen.0, address(HOST_OUTSIDE), "translated");
    for (from, payload) in [(neighbour, "neighbour"), ("93.184.216.99", "public"), (GATEWAY, "gateway")] {
        send_as(from, payload);
        assert_eq!(world.was_received(payload.as_bytes()), None, "{payload}");
    }
    // From outside, with a clone's address as source.
    world.internet.ip(&format!("addr add {neighbour}/32 dev lo"));
    let before = world.host.inside(|| firewall.connections(&[address(neighbour)]).expect("readable"));
    world.internet.inside(|| {
        let socket = UdpSocket::bind((neighbour, 0)).expect("bound");
        socket.send_to(b"x", (HOST_OUTSIDE, 80)).expect("it leaves");
    });
    let after = world.host.inside(|| firewall.connections(&[address(neighbour)]).expect("readable"));
    assert_eq!(before, after, "it created no entry in connection tracking");
}

#[test]
fn udp_reaches_the_configured_resolver_and_no_other() {
    let world = World::new();
    let firewall = firewall(|_| {});
    let ask = |to: &str, payload: &str| {
        world.clones[0].inside(|| {
            let any = if to.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
            UdpSocket::bind(any)
                .expect("bound")
                .send_to(payload.as_bytes(), to)
                .expect("it leaves the clone");
        });
        world.was_received(payload.as_bytes()).is_some()
    };
    assert!(ask("9.9.9.9:53", "control 4") && ask("[2620:fe::fe]:53", "control 6"), "arrives without rules");
    world.host.inside(|| firewall.load(&BTreeSet::new()).expect("loads"));
    assert!(!ask(&format!("{RESOLVER}:53"), "before"), "not a member");
    add(&firewall, &world, 0);
    assert!(ask(&format!("{RESOLVER}:53"), "configured"));
    assert!(ask("9.9.9.9:80", "public udp"));
    assert!(!ask("9.9.9.9:53", "foreign 4"));
    assert!(!ask("[2620:fe::fe]:53", "foreign 6"));
    assert!(!ask("10.53.0.54:53", "neighbour of the resolver"));
    // ICMP errors are delivered: no process listens on that port.
    let refused = world.clones[0].inside(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("bound");
        socket.set_read_timeout(Some(Duration::from_secs(2))).expect("a timeout");
        socket.connect("93.184.216.34:9").expect("connected");
        socket.send(b"anybody?").expect("it leaves the clone");
        socket.recv(&mut [0; 16]).expect_err("no answer")
    });
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}

#[test]
fn packets_to_a_destroyed_clone_do_not_leave_the_host() {
    let world = World::new();
    let firewall = firewall(|_| {});
    // These addresses have no link, so the host would use its default route.
    let call = |to: &str| {
        world.host.inside(|| {
            let any = if to.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
            UdpSocket::bind(any).expect("bound").send_to(b"still there?", to).map_err(|error| error.kind())
        })
    };
    let destroyed = ["10.87.67.200:9222", "[fd87::abcd]:9222"];
    for to in destroyed {
        assert_eq!(call(to), Ok(12), "leaves the host without rules");
    }
    world.host.inside(|| firewall.load(&BTreeSet::new()).expect("loads"));
    for to in destroyed {
        assert_eq!(call(to), Err(std::io::ErrorKind::PermissionDenied), "{to}");
    }
    assert_eq!(call("93.184.216.34:9222"), Ok(12), "other destinations are not affected");
    let addresses = ["10.87.67.200", "fd87::abcd"].map(address);
    assert_eq!(world.host.inside(|| firewall.connections(&addresses).expect("readable")), 0);
}

/// Sends a line and reports whether it is echoed.
fn answered(stream: &mut TcpStream, line: &[u8]) -> bool {
    let mut buffer = vec![0; line.len()];
    stream.set_read_timeout(Some(Duration::from_millis(600))).expect("a timeout");
    stream.write_all(line).is_ok() && stream.read_exact(&mut buffer).is_ok() && buffer == line
}

#[test]
fn removing_a_member_cuts_its_established_connections() {
    let world = World::new();
    let firewall = firewall(|_| {});
    world.host.inside(|| firewall.load(&BTreeSet::new()).expect("loads"));
    for index in [0, 1] {
        add(&firewall, &world, index);
    }
    let connect = |index: usize, to: &str| {
        world.clones[index].inside(|| TcpStream::connect(to).unwrap_or_else(|error| panic!("{to}: {error}")))
    };
    let mut out4 = connect(0, "93.184.216.34:80");
    let mut out6 = connect(0, "[2606:4700::1111]:80");
    let mut other = connect(1, "93.184.216.34:80");
    let browserd = format!("{}:8080", CLONES[0].1);
    let mut control =
        world.control.inside(|| TcpStream::connect(&browserd).expect("the control plane calls"));
    for stream in [&mut out4, &mut out6, &mut other, &mut control] {
        assert!(answered(stream, b"hello"));
    }
    let states = || clone(0).map(|ip| world.host.inside(|| firewall.connections(&[ip]).expect("readable")));
    assert_eq!(states(), [2, 1], "one out and one in by IPv4, one out by IPv6");
    world.host.inside(|| firewall.remove(&clone(0)).expect("removed"));
    assert!(!answered(&mut out4, b"still there?") && !answered(&mut out6, b"still there?"));
    assert!(answered(&mut control, b"still connected"), "calls to browserd do not depend on membership");
    let forget = || world.host.inside(|| firewall.end_connections(&clone(0)).expect("ended"));
    forget();
    assert_eq!(states(), [0, 0]);
    assert!(!answered(&mut out4, b"and now?") && !answered(&mut out6, b"and now?"));
    assert_eq!(states(), [0, 0], "blocked packets create no state");
    forget();
    assert!(answered(&mut other, b"still a member"));
    let left = world.host.inside(|| firewall.members().expect("readable"));
    assert_eq!(left, BTreeSet::from(clone(1)));
    // Removing an absent member succeeds.
    world.host.inside(|| firewall.remove(&clone(0)).expect("again"));
}

#[test]
fn a_flushed_ruleset_is_reported_by_an_event_and_can_be_restored() {
    let world = World::new();
    let firewall = firewall(|_| {});
    let members = BTreeSet::from(clone(0));
    world.host.inside(|| {
        assert!(matches!(firewall.prove(), Err(FirewallError::Gone { .. })));
        assert!(matches!(firewall.add(&clone(0)), Err(FirewallError::Gone { .. })));
        assert!(matches!(firewall.members(), Err(FirewallError::Gone { .. })));
        firewall.load(&members).expect("loads");
        let proof = firewall.prove().expect("the loaded rules are the rendered ones");
        println!("verified {} chains, {} rules, {} sets", proof.chains, proof.rules, proof.sets);
        assert_eq!(firewall.members().expect("readable"), members);
    });
    let mut watch = world.host.inside(|| firewall.watch().expect("watching"));
    assert_eq!(watch.changes().expect("quiet"), None);
    add(&firewall, &world, 1);
    let change = watch.wait(Duration::from_secs(5)).expect("readable").expect("an event");
    assert!(change.members && !change.rules, "{change:?}");
    while watch.wait(Duration::from_millis(100)).expect("readable").is_some() {}

    // The watcher waits in poll(2) for up to a minute; only an event wakes it earlier.
    let noticed = std::thread::spawn(move || {
        let change = watch.wait(Duration::from_secs(60)).expect("readable").expect("an event");
        (change, Instant::now())
    });
    std::thread::sleep(Duration::from_millis(50));
    let flushed = Instant::now();
    world.host.nft("flush ruleset");
    let (change, at) = noticed.join().expect("noticed");
    println!("flush noticed {:?} after nft was started: {change:?}", at - flushed);
    assert!(change.rules && change.by.contains("nft"), "{change:?}");
    assert!(at - flushed < Duration::from_secs(5));
    world.host.inside(|| {
        assert!(matches!(firewall.prove(), Err(FirewallError::Gone { .. })));
        assert!(world.clones[0].inside(|| reaches("10.0.0.1:80")), "nothing is blocked without rules");
        firewall.load(&members).expect("loads again");
        firewall.prove().expect("as before");
        assert_eq!(firewall.members().expect("readable"), members);
    });
    assert!(world.clones[0].inside(|| reaches("93.184.216.34:80")));
    assert!(!world.clones[0].inside(|| reaches("10.0.0.1:80")));
    world.host.inside(|| {
        firewall.unload().expect("unloads");
        firewall.unload().expect("unloading twice succeeds");
    });
}

#[test]
fn verification_detects_every_alteration() {
    let world = World::new();
    let firewall = firewall(|_| {});
    for (alteration, expected) in [
        ("add rule inet hostd member accept", "chain member has"),
        ("insert rule inet hostd forward accept", "chain forward has"),
        ("flush chain inet hostd from_clone", "chain from_clone has 0 rules"),
        ("flush table inet hostd", "has 0 rules"),
        ("delete table inet hostd", "is not loaded"),
        ("add table inet hostd { flags dormant; }", "flags"),
        ("add chain inet hostd extra", "chain extra does not belong there"),
        ("add set inet hostd extra { type ipv4_addr; }", "set extra does not belong there"),
        ("add chain inet hostd forward { policy drop ; }", "chain forward has another"),
    ] {
        world.host.inside(|| {
            firewall.load(&BTreeSet::from(clone(0))).expect("loads");
            firewall.prove().expect("fresh");
        });
        world.host.nft(alteration);
        let error = world.host.inside(|| firewall.prove()).expect_err(alteration).to_string();
        assert!(error.contains(expected), "{alteration}: {error}");
    }
    // Rules are replaced and their number stays the same.
    world.host.inside(|| firewall.load(&BTreeSet::new()).expect("loads"));
    world.host.nft("flush chain inet hostd to_clone");
    for _ in 0..7 {
        world.host.nft("add rule inet hostd to_clone accept");
    }
    let error = world.host.inside(|| firewall.prove()).expect_err("replaced").to_string();
    assert!(error.contains("rule 1 of chain to_clone differs"), "{error}");
    // Another policy under the same table name: the rules are equal, the sets are not.
    let other = self::firewall(|spec| spec.deny_documentation = true);
    world.host.inside(|| other.load(&BTreeSet::new()).expect("loads"));
    let error = world.host.inside(|| firewall.prove()).expect_err("other lists").to_string();
    assert!(error.contains("set denied4 has other elements"), "{error}");
    // Traffic changes counters and membership changes elements; verification ignores both.
    world.host.inside(|| firewall.load(&BTreeSet::new()).expect("loads"));
    add(&firewall, &world, 0);
    assert!(!world.clones[0].inside(|| reaches("10.0.0.1:80")));
    world.host.inside(|| firewall.prove().expect("still the same rules"));
}

#[test]
fn two_daemons_on_one_host_are_independent() {
    let world = World::new();
    let first = firewall(|_| {});
    let second = firewall(|spec| {
        spec.table = "hostd_b".into();
        spec.networks = vec!["10.99.0.0/24".parse().unwrap()];
        // A pattern for the first daemon's links would match this name.
        spec.slots = vec![Slot { interface: "bt001b".into(), ip: "10.99.0.9".parse().unwrap(), ip6: None }];
    });
    let members = BTreeSet::from(clone(0));
    let works = || {
        world.host.inside(|| {
            first.prove().expect("untouched");
            assert_eq!(first.members().expect("readable"), members);
        });
        assert!(world.clones[0].inside(|| reaches("93.184.216.34:80")));
        assert!(!world.clones[0].inside(|| reaches("10.0.0.1:80")));
    };
    world.host.inside(|| first.load(&members).expect("loads"));
    works();
    let mut watch = world.host.inside(|| first.watch().expect("watching"));
    world.host.inside(|| {
        second.load(&BTreeSet::from([address("10.99.0.9")])).expect("loads");
        second.prove().expect("as rendered");
    });
    works();
    world.host.inside(|| second.unload().expect("unloads"));
    works();
    assert_eq!(watch.changes().expect("readable"), None, "no event concerns the first daemon");
    assert!(matches!(
        world.host.inside(|| first.add(&[address("10.99.0.9")])),
        Err(FirewallError::NotASlot(_))
    ));
    assert!(matches!(
        world.host.inside(|| first.load(&BTreeSet::from([address("10.99.0.9")]))),
        Err(FirewallError::NotASlot(_))
    ));
}

#[test]
fn rules_for_900_slots_are_loaded_and_changed() {
    let firewall = firewall(|spec| {
        spec.slots = slots_up_to(900);
    });
    let netns = world::Netns::new();
    netns.inside(|| {
        let all: BTreeSet<IpAddr> = firewall
            .policy()
            .slots
            .iter()
            .flat_map(|slot| [slot.ip.into(), slot.ip6.unwrap().into()])
            .collect();
        let timed = |what: &str, times: u32, work: &dyn Fn()| {
            let start = Instant::now();
            (0..times).for_each(|_| work());
            let each = start.elapsed() / times;
            println!("{what:<44} {each:>12.1?}");
        };
        let mut watch = firewall.watch().expect("watching");
        timed("load 900 slots, no member", 1, &|| firewall.load(&BTreeSet::new()).expect("loads"));
        timed("first verification (renders the expected rules)", 1, &|| {
            assert_eq!(firewall.prove().expect("verified").chains, 15)
        });
        timed("verification", 20, &|| assert_eq!(firewall.prove().expect("verified").chains, 15));
        let slot = &firewall.policy().slots[450];
        let member = [IpAddr::V4(slot.ip), slot.ip6.unwrap().into()];
        timed("add a clone, both addresses", 200, &|| firewall.add(&member).expect("added"));
        timed("remove an absent clone", 50, &|| firewall.remove(&member).expect("removed"));
        timed("add and remove", 50, &|| {
            firewall.add(&member).expect("added");
            firewall.remove(&member).expect("removed");
        });
        timed("forget the connections", 50, &|| firewall.end_connections(&member).expect("ended"));
        timed("read the connections", 50, &|| {
            assert_eq!(firewall.connections(&member).expect("readable"), 0)
        });
        timed("load 900 slots, 1800 members", 1, &|| firewall.load(&all).expect("loads"));
        let change =
            watch.changes().expect("readable").expect("an event, although the socket buffer overflowed");
        assert!(change.rules && change.members, "{change:?}");
        timed("read 1800 members", 20, &|| assert_eq!(firewall.members().expect("readable").len(), 1800));
    });
}

#[test]
fn members_change_concurrently_while_rules_are_verified() {
    const CLONES: u16 = 20;
    let firewall = firewall(|spec| {
        spec.slots = slots_up_to(CLONES);
    });
    let netns = world::Netns::new();
    netns.inside(|| firewall.load(&BTreeSet::new()).expect("loads"));
    std::thread::scope(|scope| {
        for slot in &firewall.policy().slots {
            let (netns, firewall) = (&netns, &firewall);
            scope.spawn(move || {
                let clone = [IpAddr::V4(slot.ip), slot.ip6.unwrap().into()];
                netns.inside(|| {
                    for _ in 0..20 {
                        firewall.add(&clone).expect("added");
                        assert!(firewall.members().expect("readable").is_superset(&clone.into()));
                        firewall.remove(&clone).expect("removed");
                        assert!(firewall.members().expect("readable").is_disjoint(&clone.into()));
                    }
                    firewall.add(&clone).expect("added");
                });
            });
        }
        scope.spawn(|| netns.inside(|| (0..10).for_each(|_| _ = firewall.prove().expect("verified"))));
    });
    let members = netns.inside(|| firewall.members().expect("readable"));
    assert_eq!(members.len(), usize::from(CLONES) * 2);
}

#[test]
fn packets_to_unusual_destinations_do_not_leave_the_host() {
    const PORT: u16 = 4242;
    let world = World::new();
    let firewall = firewall(|_| {});
    // Counts packets before the receiving kernel can drop them.
    world.internet.nft("add table inet seen");
    world.internet.nft("add chain inet seen wire { type filter hook prerouting priority -400 ; }");
    world.internet.nft("add rule inet seen wire iifname eth0 udp dport 4242 counter");
    let seen = || {
        let listing = world.internet.output("/usr/sbin/nft", "list chain inet seen wire");
        let count = listing.split("packets ").nth(1).and_then(|rest| rest.split(' ').next());
        count.and_then(|count| count.parse::<u32>().ok()).expect("a counter")
    };
    // Read with ip(8): the mounted /sys shows another namespace.
    let link = world.host.output("/usr/sbin/ip", "-o link show bt001");
    let mac = link.split("link/ether ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a MAC");
    let mac: Vec<u8> =
        mac.split(':').map(|byte| u8::from_str_radix(byte, 16).expect("hexadecimal")).collect();
    let mac: [u8; 6] = mac.try_into().expect("six bytes");
    let arrives_with = |to: &str, options: &[u8]| {
        let before = seen();
        let to = address(to);
        let from = if to.is_ipv4() { clone(0)[0] } else { clone(0)[1] };
        world.clones[0].inside(|| wire::inject("eth0", mac, from, to, PORT, options));
        (0..15).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            seen() > before
        })
    };
    let arrives = |to: &str| arrives_with(to, &[]);
    let no_operation = [1; 4];
    assert!(arrives_with("93.184.216.34", &no_operation), "options are forwarded without rules");
    let denied = [
        "::ffff:10.0.0.1",
        "::ffff:93.184.216.34",
        "::10.0.0.1",
        "::1",
        "fe80::1",
        "ff0e::1",
        "64:ff9b::a9fe:a9fe",
        "127.0.0.1",
        "0.0.0.1",
        "224.0.0.251",
        "239.1.2.3",
        "255.255.255.255",
        "240.0.0.1",
        "169.254.169.254",
    ];
    let without_rules = denied.map(arrives);
    world.host.inside(|| firewall.load(&BTreeSet::new()).expect("loads"));
    add(&firewall, &world, 0);
    assert!(arrives("93.184.216.34") && arrives("2606:4700::1111"), "injected packets can arrive");
    assert!(!arrives_with("93.184.216.34", &no_operation), "IP options are dropped");
    let member = denied.map(arrives);
    for ((to, before), after) in denied.iter().zip(without_rules).zip(member) {
        println!("{to:<24} without rules: {before:<5} member: {after}");
    }
    assert!(
        without_rules.iter().filter(|arrived| **arrived).count() >= 5,
        "packets are forwarded without rules"
    );
    assert_eq!(member, [false; 14]);
}

#[test]
fn own_changes_are_distinguished_from_changes_by_others() {
    let netns = world::Netns::new();
    let firewall = firewall(|_| {});
    netns.inside(|| {
        firewall.load(&BTreeSet::new()).expect("loads");
        let mut watch = firewall.watch().expect("watching");
        firewall.add(&clone(0)).expect("added");
        firewall.remove(&clone(0)).expect("removed");
        let own = watch.wait(Duration::from_secs(5)).expect("readable").expect("an event");
        assert!(own.members && !own.rules && !own.others, "{own:?}");
    });
    netns.inside(|| {
        let mut watch = firewall.watch().expect("watching");
        firewall.add(&clone(0)).expect("added");
        let set = format!("{} {}", firewall.policy().table, firewall.policy().set);
        netns.nft(&format!("delete element inet {set} {{ {} }}", CLONES[0].1));
        let mut seen = Vec::new();
        while let Some(change) = watch.wait(Duration::from_millis(200)).expect("readable") {
            seen.push(change);
        }
        assert!(
            seen.iter().any(|change| change.members && change.others),
            "the change by nft is reported: {seen:?}"
        );
    });
}
