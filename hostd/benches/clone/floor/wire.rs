//! Netlink with nothing around it: one message, one acknowledgement.

use kernel::netlink::{Attributes, NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, Protocol, Request, Socket};
use netlink_packet_core::NetlinkSerializable;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

pub(crate) struct Rtnl(Socket);

impl Rtnl {
    pub(crate) fn open() -> Rtnl {
        Rtnl(Socket::open(Protocol::Route).unwrap())
    }

    fn send(&mut self, message: RouteNetlinkMessage, flags: u16) {
        let mut body = vec![0; message.buffer_len()];
        message.serialize(&mut body);
        self.0.change(&Request { kind: message.message_type(), flags, body }).unwrap();
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

/// One transaction with one element in each of the two sets of the table `floor`.
pub(crate) struct Netfilter(Socket);

impl Netfilter {
    pub(crate) fn open() -> Netfilter {
        Netfilter(Socket::open(Protocol::Netfilter).unwrap())
    }

    pub(crate) fn change(&mut self, kind: u16) {
        let create = if kind == ADD { NLM_F_CREATE } else { 0 };
        let frame = |kind| message(kind, 0, 0, NFTABLES, &[]);
        let element = |(set, key): (&str, &[u8])| {
            let mut attributes = Attributes::default();
            attributes.text(1, "floor");
            attributes.text(2, set);
            // A list of one element, its key, the key's value.
            attributes
                .nested(3, |list| list.nested(1, |element| element.nested(1, |value| value.bytes(1, key))));
            message(NFTABLES << 8 | kind, NLM_F_ACK | create, INET, 0, &attributes.0)
        };
        let [v4, v6] = [("v4", &[10, 99, 0, 2][..]), ("v6", &[0xfd; 16])].map(element);
        self.0.batch(&[frame(BATCH_BEGIN), v4, v6, frame(BATCH_END)]).unwrap();
    }
}

fn message(kind: u16, flags: u16, family: u8, resource: u16, attributes: &[u8]) -> Request {
    let mut body = vec![family, 0];
    body.extend(resource.to_be_bytes());
    body.extend(attributes);
    Request { kind, flags, body }
}
