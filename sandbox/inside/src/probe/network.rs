//! Attempts to use the network. Only listeners that the launcher opened for this are dialled.

use super::{Attempt, Probe, raw};
use crate::layer::Layer;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_millis(300);

fn dial(addresses: impl Iterator<Item = SocketAddr>) -> Attempt {
    let mut last = None;
    for address in addresses {
        match TcpStream::connect_timeout(&address, TIMEOUT) {
            Ok(_) => return Attempt::Open(format!("connected to {address}")),
            Err(error) => last = Some(error.to_string()),
        }
    }
    match last {
        Some(error) => Attempt::Stopped(error),
        None => Attempt::NotTried("the launcher opened no such address".to_owned()),
    }
}

pub(super) const PROBES: &[Probe] = &[
    Probe {
        name: "host-loopback",
        attempt: "connect to a service on the host's 127.0.0.1",
        layers: &[Layer::Network],
        run: |c| {
            let loopback = |a: &SocketAddr| a.is_ipv4() && a.ip().is_loopback();
            dial(c.tcp.iter().copied().filter(loopback))
        },
    },
    Probe {
        name: "host-loopback-6",
        attempt: "connect to a service on the host's ::1",
        layers: &[Layer::Network],
        run: |c| dial(c.tcp.iter().copied().filter(SocketAddr::is_ipv6)),
    },
    Probe {
        name: "other-addresses",
        attempt: "connect to link-local and private addresses that the test opened",
        layers: &[Layer::Network],
        run: |c| {
            let other = |a: &SocketAddr| a.is_ipv4() && !a.ip().is_loopback();
            dial(c.tcp.iter().copied().filter(other))
        },
    },
    Probe {
        name: "datagrams",
        attempt: "exchange datagrams with a service of the host",
        layers: &[Layer::Network],
        run: |c| {
            let mut last = None;
            for address in &c.udp {
                match exchange(*address) {
                    Ok(text) if text.contains(&c.token) => {
                        return Attempt::Open(format!("{address} answered"));
                    }
                    Ok(_) => last = Some("another answered".to_owned()),
                    Err(error) => last = Some(error.to_string()),
                }
            }
            match last {
                Some(error) => Attempt::Stopped(error),
                None => Attempt::NotTried("the launcher opened no such address".to_owned()),
            }
        },
    },
    Probe {
        name: "shared-network-namespace",
        attempt: "be in the launcher's network namespace",
        layers: &[Layer::Network],
        run: |c| {
            use std::os::unix::fs::MetadataExt;
            let own = std::fs::metadata("/proc/self/ns/net").map(|m| m.ino()).ok();
            let same = own.is_some() && own == c.namespaces.get("net").copied();
            Attempt::open_if(same, "the same", "another one")
        },
    },
    Probe {
        name: "abstract-socket",
        attempt: "connect to an abstract Unix socket of the host (X11, D-Bus, others)",
        layers: &[Layer::Network, Layer::Landlock],
        run: |c| {
            let result = UnixAddr::from_abstract_name(&c.abstract_socket)
                .and_then(|address| UnixStream::connect_addr(&address));
            Attempt::from(result, "connected")
        },
    },
    Probe {
        name: "raw-socket",
        attempt: "make a raw IP socket",
        layers: &[Layer::Capabilities],
        run: |_| Attempt::from(raw::socket(libc::AF_INET, libc::SOCK_RAW, 1), "made"),
    },
    Probe {
        name: "privileged-port",
        attempt: "listen on a port reserved for root",
        layers: &[Layer::Capabilities],
        run: |_| Attempt::from(TcpListener::bind((Ipv4Addr::LOCALHOST, 79)), "listening on 79"),
    },
    Probe {
        name: "packet-socket",
        attempt: "make a packet socket (read everything on the wire)",
        layers: &[Layer::Seccomp, Layer::Capabilities],
        run: |_| Attempt::from(raw::socket(libc::AF_PACKET, libc::SOCK_RAW, 0x0300), "made"),
    },
    Probe {
        name: "vsock",
        attempt: "make a socket to the hypervisor (vsock)",
        layers: &[Layer::Seccomp],
        run: |_| Attempt::from(raw::socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0), "made"),
    },
    Probe {
        name: "kernel-crypto-socket",
        attempt: "make a socket to the kernel's cryptography (AF_ALG)",
        layers: &[Layer::Seccomp],
        run: |_| Attempt::from(raw::socket(libc::AF_ALG, libc::SOCK_SEQPACKET, 0), "made"),
    },
    Probe {
        name: "firewall-netlink",
        attempt: "talk to the kernel's firewall over netlink",
        layers: &[Layer::Seccomp],
        run: |_| Attempt::from(raw::socket(libc::AF_NETLINK, libc::SOCK_RAW, 12), "made"),
    },
    Probe {
        name: "generic-netlink",
        attempt: "talk to drivers over generic netlink",
        layers: &[Layer::Seccomp],
        run: |_| Attempt::from(raw::socket(libc::AF_NETLINK, libc::SOCK_RAW, 16), "made"),
    },
];

fn exchange(address: SocketAddr) -> std::io::Result<String> {
    let local: SocketAddr = if address.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (std::net::Ipv6Addr::UNSPECIFIED, 0).into()
    };
    let socket = UdpSocket::bind(local)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.connect(address)?;
    socket.send(b"hello")?;
    let mut buffer = [0; 256];
    let length = socket.recv(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}
