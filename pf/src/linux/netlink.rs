//! nfnetlink: the messages of nftables and connection tracking, over the sockets of [`kernel::netlink`].

pub(super) use kernel::netlink::{Attributes, NLA_F_NESTED as NESTED, NLM_F_CREATE as CREATE};

use kernel::netlink::{self, EventSocket, NLM_F_ACK, Protocol, Request};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// `struct nfgenmsg`: family, version, resource ID.
const HEADER: usize = 4;

const NFNL_MSG_BATCH_BEGIN: u16 = 16;
const NFNL_MSG_BATCH_END: u16 = 17;

/// The subsystem is the upper byte of a message type.
pub(super) const NFTABLES: u16 = 10 << 8;
pub(super) const CONNTRACK: u16 = 1 << 8;

/// Families of netfilter: all of them, IPv4 with IPv6, and IPv4.
pub(super) const UNSPECIFIED: u8 = 0;
pub(super) const INET: u8 = 1;
pub(super) const IPV4: u8 = 2;

/// A message to or from netfilter.
#[derive(Debug, Clone)]
pub(super) struct Message {
    /// Subsystem and type.
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) family: u8,
    /// The socket whose request this answers. In an event: the socket that caused it.
    pub(super) port: u32,
    pub(super) attributes: Attributes,
}

impl Message {
    pub(super) fn new(kind: u16, family: u8) -> Message {
        Message { kind, flags: 0, family, port: 0, attributes: Attributes::default() }
    }

    pub(super) fn with(mut self, fill: impl FnOnce(&mut Attributes)) -> Message {
        fill(&mut self.attributes);
        self
    }

    fn request(&self, flags: u16) -> Request {
        Request { kind: self.kind, flags: self.flags | flags, body: self.body(0) }
    }

    fn body(&self, resource: u16) -> Vec<u8> {
        let mut body = Vec::with_capacity(HEADER + self.attributes.0.len());
        body.extend([self.family, 0]);
        body.extend(resource.to_be_bytes());
        body.extend(&self.attributes.0);
        body
    }

    /// `None`: the message has no nfnetlink header.
    fn parse(message: &netlink::Message) -> Option<Message> {
        Some(Message {
            kind: message.kind,
            flags: message.flags,
            family: *message.body.first()?,
            port: message.port,
            attributes: Attributes(message.body.get(HEADER..)?.to_vec()),
        })
    }
}

fn parse(messages: &[netlink::Message]) -> io::Result<Vec<Message>> {
    let parsed: Option<Vec<Message>> = messages.iter().map(Message::parse).collect();
    parsed.ok_or_else(|| io::Error::other("a message of netfilter has no header"))
}

/// A netfilter socket of the calling thread's network namespace.
#[derive(Debug)]
pub(super) struct Socket(netlink::Socket);

impl Socket {
    pub(super) fn open() -> io::Result<Socket> {
        netlink::Socket::open(Protocol::Netfilter).map(Socket)
    }

    /// The port ID that the kernel gave this socket.
    pub(super) fn port(&self) -> u32 {
        self.0.port()
    }

    /// All messages of a dump, of one moment.
    pub(super) fn dump(&mut self, request: &Message) -> io::Result<Vec<Message>> {
        parse(&self.0.dump(&request.request(0))?)
    }

    /// A request that the kernel acknowledges.
    pub(super) fn request(&mut self, message: &Message) -> io::Result<()> {
        self.0.change(&message.request(0))
    }

    /// Changes of nftables that the kernel applies all together or not at all.
    pub(super) fn transaction(&mut self, messages: &[Message]) -> io::Result<()> {
        // The first and the last message name the subsystem as their resource ID.
        let frame =
            |kind| Request { kind, flags: 0, body: Message::new(kind, UNSPECIFIED).body(NFTABLES >> 8) };
        let mut batch = vec![frame(NFNL_MSG_BATCH_BEGIN)];
        batch.extend(messages.iter().map(|message| message.request(NLM_F_ACK)));
        batch.push(frame(NFNL_MSG_BATCH_END));
        self.0.batch(&batch)
    }
}

/// Netfilter's events in the calling thread's network namespace.
#[derive(Debug)]
pub(super) struct Events(EventSocket);

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What [`Events::read`] found.
#[derive(Debug)]
pub(super) enum Read {
    Messages(Vec<Message>),
    /// Events did not fit into the socket's buffer and are gone.
    Lost,
    /// Nothing now.
    None,
}

impl Events {
    /// Subscribe to multicast groups: bit `n - 1` is group `n`.
    pub(super) fn subscribe(groups: u32) -> io::Result<Events> {
        EventSocket::subscribe(Protocol::Netfilter, groups).map(Events)
    }

    /// The next events, without waiting.
    pub(super) fn read(&mut self) -> io::Result<Read> {
        Ok(match self.0.read()? {
            netlink::Events::Messages(messages) => Read::Messages(parse(&messages)?),
            netlink::Events::Lost => Read::Lost,
            netlink::Events::None => Read::None,
        })
    }
}
