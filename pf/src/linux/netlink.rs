//! As much of netlink as set members, dumps and connection tracking need: no crate speaks all three without a C library
//! or a foreign licence, and it is a length, a type and a value.

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, getsockname, recv, send,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// The kernel answers at once; a socket that stays silent is a bug that must not hang a daemon.
const ANSWER_DEADLINE: TimeVal = TimeVal::new(5, 0);
/// The kernel fills at most 32 KiB of a dump at a time.
const RECEIVE_BUFFER: usize = 64 * 1024;
/// Somebody else changed what was being read: read again, but not for ever.
const DUMP_TRIES: usize = 16;

const HEADER: usize = 16;
/// `struct nfgenmsg`: family, version, resource.
const NETFILTER_HEADER: usize = 4;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NFNL_MSG_BATCH_BEGIN: u16 = 16;
const NFNL_MSG_BATCH_END: u16 = 17;

const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
const DUMP: u16 = 0x300;
const DUMP_INTERRUPTED: u16 = 0x10;
/// `NLM_F_CREATE`: make what does not exist.
pub(super) const CREATE: u16 = 0x400;

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
    /// The socket whose request it answers, or whose doing it tells.
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
}

/// Attributes: written one after the other, read by [`Attributes::iter`] or [`Attributes::get`].
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Attributes(pub(super) Vec<u8>);

/// Set in the type of an attribute that consists of attributes.
pub(super) const NESTED: u16 = 0x8000;
const TYPE_MASK: u16 = 0x3fff;

fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

impl Attributes {
    pub(super) fn bytes(&mut self, id: u16, value: &[u8]) {
        let length = u16::try_from(value.len() + 4).expect("an attribute is far below 64 KiB");
        self.0.extend(length.to_ne_bytes());
        self.0.extend(id.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(aligned(self.0.len()), 0);
    }

    pub(super) fn text(&mut self, id: u16, value: &str) {
        self.bytes(id, &[value.as_bytes(), &[0]].concat());
    }

    pub(super) fn nested(&mut self, id: u16, fill: impl FnOnce(&mut Attributes)) {
        let mut inner = Attributes::default();
        fill(&mut inner);
        self.bytes(id | NESTED, &inner.0);
    }

    pub(super) fn iter(&self) -> AttributeIter<'_> {
        AttributeIter(&self.0)
    }

    pub(super) fn get(&self, id: u16) -> Option<&[u8]> {
        self.iter().find(|(found, _)| *found == id).map(|(_, value)| value)
    }

    pub(super) fn get_nested(&self, id: u16) -> Option<Attributes> {
        self.get(id).map(|value| Attributes(value.to_vec()))
    }

    /// A text without its terminating NUL.
    pub(super) fn get_text(&self, id: u16) -> Option<String> {
        let value = self.get(id)?;
        Some(String::from_utf8_lossy(value.strip_suffix(&[0]).unwrap_or(value)).into_owned())
    }
}

/// Stops at the first attribute that does not fit: the kernel never sends one.
pub(super) struct AttributeIter<'a>(&'a [u8]);

impl<'a> Iterator for AttributeIter<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let length = usize::from(u16::from_ne_bytes(self.0.get(..2)?.try_into().ok()?));
        let id = u16::from_ne_bytes(self.0.get(2..4)?.try_into().ok()?) & TYPE_MASK;
        let value = self.0.get(4..length)?;
        self.0 = self.0.get(aligned(length)..).unwrap_or(&[]);
        Some((id, value))
    }
}

/// One message as it came, and what kind it is.
enum Received {
    Done,
    /// An acknowledgement: 0 or an error number, and the sequence number it is about.
    Answer {
        errno: i32,
        sequence: u32,
    },
    Message {
        message: Message,
        sequence: u32,
    },
}

/// A netfilter socket of the calling thread's network namespace.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    port: u32,
    sequence: u32,
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Socket {
    /// For requests.
    pub(super) fn open() -> io::Result<Socket> {
        let fd = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkNetFilter,
        )?;
        setsockopt(&fd, sockopt::ReceiveTimeout, &ANSWER_DEADLINE)?;
        // Any free number.
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        let port = getsockname::<NetlinkAddr>(fd.as_raw_fd())?.pid();
        Ok(Socket { fd, port, sequence: 0 })
    }

    /// For the news of some multicast groups (a bit each); never blocks.
    pub(super) fn subscribe(groups: u32) -> io::Result<Socket> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkNetFilter)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
        Ok(Socket { fd, port: 0, sequence: 0 })
    }

    /// The number by which the kernel knows it.
    pub(super) fn port(&self) -> u32 {
        self.port
    }

    /// Everything the kernel has to say to a question, of one moment.
    pub(super) fn dump(&mut self, question: &Message) -> io::Result<Vec<Message>> {
        for _ in 0..DUMP_TRIES {
            if let Some(messages) = self.dump_once(question)? {
                return Ok(messages);
            }
        }
        Err(io::Error::other("the kernel's tables changed during each of many reads: try again"))
    }

    /// None if it changed in between.
    fn dump_once(&mut self, question: &Message) -> io::Result<Option<Vec<Message>>> {
        let sequence = self.send(&self.encode(question, DUMP, 1, 0), 1)?;
        let mut messages = Vec::new();
        let mut interrupted = false;
        loop {
            for received in self.receive()? {
                match received {
                    Received::Message { message, sequence: about } if about == sequence => {
                        interrupted |= message.flags & DUMP_INTERRUPTED != 0;
                        messages.push(message);
                    }
                    Received::Answer { errno, sequence: about } if about == sequence && errno != 0 => {
                        return Err(io::Error::from_raw_os_error(errno));
                    }
                    Received::Done => return Ok((!interrupted).then_some(messages)),
                    _ => {}
                }
            }
        }
    }

    /// One request, acknowledged.
    pub(super) fn request(&mut self, message: &Message) -> io::Result<()> {
        let bytes = self.encode(message, ACK, 1, 0);
        let sequence = self.send(&bytes, 1)?;
        self.acknowledged(sequence, 1)
    }

    /// nftables changes that happen all or not at all.
    pub(super) fn transaction(&mut self, messages: &[Message]) -> io::Result<()> {
        let frame = |kind, number| self.encode(&Message::new(kind, 0), 0, number, NFTABLES >> 8);
        let mut bytes = frame(NFNL_MSG_BATCH_BEGIN, 1);
        let mut number = 1;
        for message in messages {
            number += 1;
            bytes.extend(self.encode(message, ACK, number, 0));
        }
        bytes.extend(frame(NFNL_MSG_BATCH_END, number + 1));
        let first = self.send(&bytes, number + 1)?;
        self.acknowledged(first, messages.len())
    }

    /// Waits for as many acknowledgements; the first error counts.
    fn acknowledged(&mut self, first: u32, mut outstanding: usize) -> io::Result<()> {
        while outstanding > 0 {
            for received in self.receive()? {
                match received {
                    Received::Answer { errno, sequence } if sequence >= first => {
                        if errno != 0 {
                            return Err(io::Error::from_raw_os_error(errno));
                        }
                        outstanding = outstanding.saturating_sub(1);
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Begin and end of a transaction name the subsystem they are for as their resource.
    fn encode(&self, message: &Message, flags: u16, number: u32, resource: u16) -> Vec<u8> {
        let length = HEADER + NETFILTER_HEADER + message.attributes.0.len();
        let mut bytes = Vec::with_capacity(aligned(length));
        bytes.extend(u32::try_from(length).expect("a message is far below 4 GiB").to_ne_bytes());
        bytes.extend(message.kind.to_ne_bytes());
        bytes.extend((message.flags | flags | REQUEST).to_ne_bytes());
        bytes.extend(self.sequence.wrapping_add(number).to_ne_bytes());
        bytes.extend(0u32.to_ne_bytes());
        bytes.extend([message.family, 0]);
        bytes.extend(resource.to_be_bytes());
        bytes.extend(&message.attributes.0);
        bytes.resize(aligned(length), 0);
        bytes
    }

    /// Sends messages with the next numbers and says the first of them.
    fn send(&mut self, bytes: &[u8], numbers: u32) -> io::Result<u32> {
        let sent = send(self.fd.as_raw_fd(), bytes, MsgFlags::empty())?;
        if sent != bytes.len() {
            return Err(io::Error::other("a netlink request was sent in part"));
        }
        let first = self.sequence.wrapping_add(1);
        self.sequence = self.sequence.wrapping_add(numbers);
        Ok(first)
    }

    /// The next datagram's messages as plain messages; None when there is none now.
    pub(super) fn news(&mut self) -> io::Result<Option<Vec<Message>>> {
        match self.receive() {
            Ok(received) => Ok(Some(
                received
                    .into_iter()
                    .filter_map(|received| match received {
                        Received::Message { message, .. } => Some(message),
                        Received::Done | Received::Answer { .. } => None,
                    })
                    .collect(),
            )),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn receive(&mut self) -> io::Result<Vec<Received>> {
        let mut buffer = vec![0; RECEIVE_BUFFER];
        let length = loop {
            match recv(self.fd.as_raw_fd(), &mut buffer, MsgFlags::MSG_TRUNC) {
                Err(Errno::EINTR) => {}
                other => break other?,
            }
        };
        let datagram =
            buffer.get(..length).ok_or_else(|| io::Error::other("the kernel's answer was too long"))?;
        messages(datagram).ok_or_else(|| io::Error::other("the kernel's answer could not be read"))
    }
}

/// The messages of a datagram; None if it is malformed.
fn messages(mut datagram: &[u8]) -> Option<Vec<Received>> {
    let mut received = Vec::new();
    while !datagram.is_empty() {
        let u32_at = |at: usize| Some(u32::from_ne_bytes(datagram.get(at..at + 4)?.try_into().ok()?));
        let u16_at = |at: usize| Some(u16::from_ne_bytes(datagram.get(at..at + 2)?.try_into().ok()?));
        let length = usize::try_from(u32_at(0)?).ok()?;
        let (kind, flags, sequence, port) = (u16_at(4)?, u16_at(6)?, u32_at(8)?, u32_at(12)?);
        let body = datagram.get(HEADER..length)?;
        received.push(match kind {
            NLMSG_DONE => Received::Done,
            NLMSG_ERROR => {
                let errno = -i32::from_ne_bytes(body.get(..4)?.try_into().ok()?);
                Received::Answer { errno, sequence }
            }
            _ => {
                let family = *body.first()?;
                let attributes = Attributes(body.get(NETFILTER_HEADER..)?.to_vec());
                Received::Message { message: Message { kind, flags, family, port, attributes }, sequence }
            }
        });
        datagram = datagram.get(aligned(length)..).unwrap_or(&[]);
    }
    Some(received)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn attributes_are_read_as_they_were_written() {
        let mut attributes = Attributes::default();
        attributes.text(1, "hostd");
        attributes.nested(2, |inner| inner.bytes(7, &[1, 2, 3, 4]));
        attributes.bytes(3, &[9]);
        assert_eq!(attributes.0.len() % 4, 0);
        assert_eq!(attributes.get_text(1).as_deref(), Some("hostd"));
        assert_eq!(attributes.get_nested(2).unwrap().get(7), Some(&[1, 2, 3, 4][..]));
        assert_eq!(attributes.get(3), Some(&[9][..]));
        assert_eq!(attributes.get(4), None);
    }

    proptest! {
        #[test]
        fn reading_any_bytes_neither_panics_nor_hangs(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = messages(&bytes);
            prop_assert!(Attributes(bytes.clone()).iter().count() <= bytes.len());
        }
    }
}
