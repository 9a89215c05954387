//! The resolvers of this machine, as its programs use them: `/etc/resolv.conf`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};

/// The file of resolv.conf(5). A stub resolver such as systemd-resolved, dnsmasq or unbound is listed in it by its loopback
/// address, and a VPN client changes it while it is connected.
const FILE: &str = "/etc/resolv.conf";
/// More are ignored, as the C library does.
const MOST: usize = 3;
const PORT: u16 = 53;

/// The resolvers of this machine now, in their order.
pub(super) fn of_this_machine() -> Vec<SocketAddr> {
    listed(&std::fs::read_to_string(FILE).unwrap_or_default())
}

/// The resolvers that a resolv.conf names. One that names none means the machine itself.
fn listed(text: &str) -> Vec<SocketAddr> {
    let servers = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.next()? == "nameserver").then(|| words.next().and_then(server)).flatten()
    });
    let found: Vec<SocketAddr> = servers.take(MOST).collect();
    match found.is_empty() {
        true => vec![(Ipv4Addr::LOCALHOST, PORT).into()],
        false => found,
    }
}

/// A server's address. A link-local one names its interface after a percent sign.
fn server(text: &str) -> Option<SocketAddr> {
    if let Some((address, interface)) = text.split_once('%') {
        let scope = interface.parse().ok().or_else(|| nix::net::if_::if_nametoindex(interface).ok())?;
        return Some(SocketAddrV6::new(address.parse().ok()?, PORT, 0, scope).into());
    }
    Some(match text.parse().ok()? {
        // The unspecified address is the machine itself.
        IpAddr::V4(address) if address.is_unspecified() => (Ipv4Addr::LOCALHOST, PORT).into(),
        address => (address, PORT).into(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_common_resolv_conf_is_read() {
        let read = |text: &str| listed(text).iter().map(ToString::to_string).collect::<Vec<_>>();
        let stub = "# systemd-resolved\nnameserver 127.0.0.53\noptions edns0 trust-ad\nsearch fritz.box\n";
        assert_eq!(read(stub), ["127.0.0.53:53"]);
        assert_eq!(
            read("; router\nnameserver 192.168.1.1\nnameserver\t2001:db8::1 \n"),
            ["192.168.1.1:53", "[2001:db8::1]:53"]
        );
        assert_eq!(read("nameserver fe80::1%1\n"), ["[fe80::1%1]:53"]);
        assert_eq!(read("nameserver fe80::1%lo\n").len(), 1);
        for none in ["", "search example.org\n", "nameserver\nnameserver x\nnameservers 1.1.1.1\n"] {
            assert_eq!(read(none), ["127.0.0.1:53"], "{none:?}");
        }
        assert_eq!(read("nameserver 0.0.0.0\n"), ["127.0.0.1:53"]);
        let many = "nameserver 10.0.0.1\nnameserver 10.0.0.2\nnameserver 10.0.0.3\nnameserver 10.0.0.4\n";
        assert_eq!(read(many).len(), 3);
    }
}
