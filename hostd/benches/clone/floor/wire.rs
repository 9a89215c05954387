//! Netlink with nothing around it: one message, one acknowledgement.

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE};
use netlink_sys::{Socket, SocketAddr};
use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

fn socket(protocol: isize) -> Socket {
    let mut socket = Socket::new(protocol).unwrap();
    socket.bind_auto().unwrap();
    socket.connect(&SocketAddr::new(0, 0)).unwrap();
    socket
}

/// The error number of an acknowledgement; zero is success.
fn acknowledged(socket: &Socket) -> i32 {
    let (bytes, _) = socket.recv_from_full().unwrap();
    -i32::from_ne_bytes(bytes[16..20].try_into().unwrap())
}

pub(crate) struct Rtnl(Socket);

impl Rtnl {
    pub(crate) fn open() -> Rtnl {
        Rtnl(socket(NETLINK_ROUTE))
    }

    fn send(&mut self, message: RouteNetlinkMessage, flags: u16) {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.0.send(&bytes, 0).unwrap();
        assert_eq!(acknowledged(&self.0), 0);
    }

    pub(crate) fn make_pair(&mut self, name: &str, namespace: &File) {
        let mut peer = LinkMessage::default();
        peer.attributes =
            vec![LinkAttribute::IfName("eth0".into()), LinkAttribute::NetNsFd(namespace.as_raw_fd())];
        let mut pair = LinkMessage::default();
        pair.attributes = vec![
            LinkAttribute::IfName(name.into()),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
            ]),
        ];
        self.send(RouteNetlinkMessage::NewLink(pair), NLM_F_CREATE | NLM_F_EXCL);
    }

    pub(crate) fn remove(&mut self, name: &str) {
        let mut link = LinkMessage::default();
        link.header.index = index(name);
        self.send(RouteNetlinkMessage::DelLink(link), 0);
    }

    pub(crate) fn up(&mut self, name: &str) {
        let mut link = LinkMessage::default();
        link.header.index = index(name);
        link.header.change_mask = LinkFlags::Up;
        link.header.flags = LinkFlags::Up;
        self.send(RouteNetlinkMessage::SetLink(link), 0);
    }

    /// Point-to-point addresses, up, and default routes to the peers if wanted.
    pub(crate) fn furnish(&mut self, name: &str, pairs: &[(IpAddr, IpAddr)], routes: bool) {
        let link = index(name);
        for (local, peer) in pairs {
            let mut message = AddressMessage::default();
            message.header.index = link;
            message.header.family = family(*local);
            message.header.prefix_len = if local.is_ipv4() { 32 } else { 128 };
            message.attributes = vec![AddressAttribute::Local(*local), AddressAttribute::Address(*peer)];
            if local.is_ipv6() {
                message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
            }
            self.send(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL);
        }
        self.up(name);
        for (_, peer) in pairs.iter().filter(|_| routes) {
            let mut message = RouteMessage::default();
            message.header.address_family = family(*peer);
            message.header.table = libc::RT_TABLE_MAIN;
            message.header.protocol = RouteProtocol::Static;
            message.header.scope = RouteScope::Universe;
            message.header.kind = RouteType::Unicast;
            message.header.flags = RouteFlags::Onlink;
            let via = match peer {
                IpAddr::V4(ip) => RouteAddress::Inet(*ip),
                IpAddr::V6(ip) => RouteAddress::Inet6(*ip),
            };
            message.attributes = vec![RouteAttribute::Gateway(via), RouteAttribute::Oif(link)];
            self.send(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL);
        }
    }
}

fn index(name: &str) -> u32 {
    nix::net::if_::if_nametoindex(name).unwrap()
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

/// `NFT_MSG_NEWSETELEM` and `NFT_MSG_DELSETELEM`.
pub(crate) const ADD: u16 = 12;
pub(crate) const DELETE: u16 = 14;
const NFTABLES: u16 = 10;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const INET: u8 = 1;
const NESTED: u16 = 1 << 15;

/// One transaction with one element in each of the two sets of the table `floor`.
pub(crate) struct Netfilter(Socket);

impl Netfilter {
    pub(crate) fn open() -> Netfilter {
        Netfilter(socket(NETLINK_NETFILTER))
    }

    pub(crate) fn change(&mut self, kind: u16) {
        let create = if kind == ADD { NLM_F_CREATE } else { 0 };
        let mut batch = message(BATCH_BEGIN, NLM_F_REQUEST, 0, NFTABLES, &[]);
        for (set, key) in [("v4", vec![10, 99, 0, 2]), ("v6", vec![0xfd; 16])] {
            // An element, its key, the key's value.
            let element = attribute(NESTED | 1, &attribute(NESTED | 1, &attribute(1, &key)));
            let mut attributes = attribute(1, b"floor\0");
            attributes.extend(attribute(2, format!("{set}\0").as_bytes()));
            attributes.extend(attribute(NESTED | 3, &element));
            let flags = NLM_F_REQUEST | NLM_F_ACK | create;
            batch.extend(message(NFTABLES << 8 | kind, flags, INET, 0, &attributes));
        }
        batch.extend(message(BATCH_END, NLM_F_REQUEST, 0, NFTABLES, &[]));
        self.0.send(&batch, 0).unwrap();
        for _ in 0..2 {
            assert_eq!(acknowledged(&self.0), 0);
        }
    }
}

fn message(kind: u16, flags: u16, family: u8, resource: u16, attributes: &[u8]) -> Vec<u8> {
    let length = 20 + attributes.len() as u32;
    let mut bytes = Vec::new();
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([family, 0]);
    bytes.extend(resource.to_be_bytes());
    bytes.extend(attributes);
    bytes
}

fn attribute(kind: u16, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend((4 + content.len() as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(content);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}
