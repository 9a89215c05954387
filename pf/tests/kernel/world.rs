//! A test network of namespaces: a host, two clones, a control plane, and "the Internet", which answers on every address.
//! It has no connection to the machine's network.

use crate::probe::reaches;
use nix::sched::{CloneFlags, setns, unshare};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// A network namespace, kept alive by a sleeping process that is killed on drop.
pub(crate) struct Netns {
    holder: Child,
    file: File,
}

impl Netns {
    pub(crate) fn new() -> Netns {
        let holder = thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("these tests need root");
            Command::new("/bin/sleep").arg("600").stdin(Stdio::null()).spawn().expect("sleep starts")
        });
        let holder = holder.join().expect("a namespace");
        let file = File::open(format!("/proc/{}/ns/net", holder.id())).expect("its handle");
        let netns = Netns { holder, file };
        netns.ip("link set lo up");
        // Skips duplicate address detection, which would delay every address.
        netns.sysctl("ipv6/conf/default/accept_dad", "0");
        netns
    }

    /// Runs `work` in a thread inside the namespace.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                setns(&self.file, CloneFlags::CLONE_NEWNET).expect("the namespace can be joined");
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn run(&self, program: &str, arguments: &str) {
        let output = self.inside(|| {
            Command::new(program)
                .args(arguments.split_whitespace())
                .stdin(Stdio::null())
                .output()
                .expect("it starts")
        });
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{program} {arguments}: {stderr}");
    }

    pub(crate) fn ip(&self, arguments: &str) {
        self.run("/usr/sbin/ip", arguments);
    }

    pub(crate) fn nft(&self, arguments: &str) {
        self.run("/usr/sbin/nft", arguments);
    }

    /// Runs a command and returns its output.
    pub(crate) fn output(&self, program: &str, arguments: &str) -> String {
        let arguments = arguments.split_whitespace();
        let output = self.inside(|| Command::new(program).args(arguments).stdin(Stdio::null()).output());
        String::from_utf8(output.expect("it starts").stdout).expect("text")
    }

    pub(crate) fn sysctl(&self, name: &str, value: &str) {
        let path = format!("/proc/sys/net/{name}");
        self.inside(|| std::fs::write(&path, value).unwrap_or_else(|error| panic!("{path}: {error}")));
    }

    /// Creates a veth link to another namespace.
    fn link(&self, name: &str, there: &Netns, name_there: &str) {
        let pid = there.holder.id();
        self.ip(&format!("link add {name} type veth peer name {name_there} netns {pid}"));
        self.ip(&format!("link set {name} up"));
        there.ip(&format!("link set {name_there} up"));
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// A received datagram: source, destination port, payload.
pub(crate) type Datagram = (IpAddr, u16, Vec<u8>);

pub(crate) struct World {
    pub(crate) host: Netns,
    pub(crate) clones: [Netns; 2],
    pub(crate) control: Netns,
    pub(crate) internet: Netns,
    /// Datagrams that the Internet received.
    pub(crate) received: Arc<Mutex<Vec<Datagram>>>,
}

pub(crate) const GATEWAY: &str = "10.87.64.1";
pub(crate) const GATEWAY6: &str = "fd87::1";
pub(crate) const HOST_OUTSIDE: &str = "203.0.113.2";
pub(crate) const HOST_OUTSIDE6: &str = "2001:db8:1::2";
pub(crate) const CONTROL: &str = "10.50.0.2";
pub(crate) const CLONES: [(&str, &str, &str); 2] =
    [("bt001", "10.87.64.16", "fd87::10"), ("bt002", "10.87.64.17", "fd87::11")];

impl World {
    pub(crate) fn new() -> World {
        let world = World {
            host: Netns::new(),
            clones: [Netns::new(), Netns::new()],
            control: Netns::new(),
            internet: Netns::new(),
            received: Arc::default(),
        };
        let World { host, clones, control, internet, .. } = &world;
        host.sysctl("ipv4/ip_forward", "1");
        host.sysctl("ipv6/conf/all/forwarding", "1");
        for scope in ["all", "default"] {
            // Without the reverse path filter, only the rules can drop packets.
            host.sysctl(&format!("ipv4/conf/{scope}/rp_filter"), "0");
            internet.sysctl(&format!("ipv4/conf/{scope}/rp_filter"), "0");
        }
        for ((link, ip, ip6), clone) in CLONES.into_iter().zip(clones) {
            host.link(link, clone, "eth0");
            host.sysctl(&format!("ipv4/conf/{link}/rp_filter"), "0");
            host.ip(&format!("addr add {GATEWAY}/32 dev {link}"));
            host.ip(&format!("addr add {GATEWAY6}/128 dev {link} nodad"));
            host.ip(&format!("route add {ip}/32 dev {link}"));
            host.ip(&format!("route add {ip6}/128 dev {link}"));
            clone.ip(&format!("addr add {ip}/32 dev eth0"));
            clone.ip(&format!("addr add {ip6}/128 dev eth0 nodad"));
            clone.ip(&format!("route add default via {GATEWAY} dev eth0 onlink"));
            clone.ip(&format!("route add {GATEWAY6}/128 dev eth0"));
            clone.ip(&format!("route add default via {GATEWAY6} dev eth0"));
        }
        host.link("ext0", internet, "eth0");
        host.ip(&format!("addr add {HOST_OUTSIDE}/24 dev ext0"));
        host.ip(&format!("addr add {HOST_OUTSIDE6}/64 dev ext0 nodad"));
        internet.ip("addr add 203.0.113.1/24 dev eth0");
        internet.ip("addr add 2001:db8:1::1/64 dev eth0 nodad");
        host.ip("route add default via 203.0.113.1");
        host.ip("route add default via 2001:db8:1::1");
        // Every other address is local to the Internet. The route is in the main table, so the return routes, which are
        // more specific, take precedence.
        internet.ip("route add local default dev lo table main");
        internet.ip("-6 route add local default dev lo table main");
        internet.ip(&format!("route add 10.87.64.0/22 via {HOST_OUTSIDE}"));
        internet.ip(&format!("route add fd87::/64 via {HOST_OUTSIDE6}"));
        host.link("ctl0", control, "eth0");
        host.ip("addr add 10.50.0.1/24 dev ctl0");
        control.ip(&format!("addr add {CONTROL}/24 dev eth0"));
        control.ip("route add default via 10.50.0.1");

        for port in [53, 80, 853, 8080] {
            host.inside(|| echo("::", port));
            internet.inside(|| echo("::", port));
            for ((_, ip, ip6), clone) in CLONES.into_iter().zip(clones) {
                // Not on loopback, which the rules do not filter.
                clone.inside(|| echo(ip, port));
                clone.inside(|| echo(ip6, port));
            }
        }
        for port in [53, 80] {
            let received = Arc::clone(&world.received);
            internet.inside(|| collect(port, received));
        }
        world.warm_up();
        world
    }

    /// Waits until all links work: a new link loses its first packets.
    fn warm_up(&self) {
        for netns in &self.clones {
            for target in ["93.184.216.34:80", "[2606:4700::1111]:80"] {
                assert!((0..5).any(|_| netns.inside(|| reaches(target))), "{target} answers without rules");
            }
        }
        for netns in [&self.host, &self.control, &self.internet] {
            let target = format!("{}:8080", CLONES[0].1);
            assert!((0..5).any(|_| netns.inside(|| reaches(&target))), "{target} answers without rules");
        }
    }

    /// Waits up to 300 ms for the Internet to receive this datagram.
    pub(crate) fn was_received(&self, payload: &[u8]) -> Option<Datagram> {
        for _ in 0..30 {
            let received = self.received.lock().expect("no panic while held");
            if let Some(datagram) = received.iter().find(|(_, _, bytes)| bytes == payload) {
                return Some(datagram.clone());
            }
            drop(received);
            thread::sleep(Duration::from_millis(10));
        }
        None
    }
}

/// A TCP echo server, bound in the calling thread's network namespace.
fn echo(ip: &str, port: u16) {
    let listener = TcpListener::bind((ip, port)).expect("a listener");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            thread::spawn(move || {
                let mut buffer = [0; 1024];
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    if stream.write_all(&buffer[..count]).is_err() {
                        break;
                    }
                }
            });
        }
    });
}

/// A UDP server that records the datagrams it receives.
fn collect(port: u16, received: Arc<Mutex<Vec<Datagram>>>) {
    let socket = UdpSocket::bind(("::", port)).expect("a socket");
    thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((count, from)) = socket.recv_from(&mut buffer) {
            let from: SocketAddr = from;
            let datagram = (from.ip().to_canonical(), port, buffer[..count].to_vec());
            received.lock().expect("no panic while held").push(datagram);
        }
    });
}
