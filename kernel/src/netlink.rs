//! Netlink sockets (netlink(7)): acknowledged requests, dumps, batches and multicast events.
//!
//! This module knows the message header and the attribute format. Its callers know the messages: rtnetlink in `hostd`,
//! nfnetlink in `pf`. These rules hold for every protocol:
//!
//! - A reply counts only if the kernel sent it (sender's port ID 0), to this socket (`nlmsg_pid`), for this request
//!   (`nlmsg_seq`). Everything else is skipped: any process may send to a netlink socket, and the rest of an earlier
//!   reply may still be queued after an error.
//! - A dump that the kernel marks as inconsistent (`NLM_F_DUMP_INTR`) is repeated a bounded number of times. Then it is
//!   an error: half of a table must not be taken for the whole.
//! - `recvmsg(2)` that a signal interrupts (`EINTR`) is resumed.
//! - A socket for requests has a receive timeout, so that a missing reply is an error and not a hang.
//! - Events that did not fit into the socket's buffer (`ENOBUFS`) are reported as [`Events::Lost`].

mod attributes;
#[cfg(test)]
mod tests;

pub use attributes::{Attributes, NLA_F_NESTED};

use nix::errno::Errno;
use nix::sys::socket::{
    self, AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, sockopt,
};
use nix::sys::time::TimeVal;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// The kernel replies at once, unless it waits for one of its own locks.
const REPLY_TIMEOUT: TimeVal = TimeVal::new(30, 0);
/// The kernel sends at most 32 KiB of a dump in one datagram.
const BUFFER_SIZE: usize = 64 * 1024;
/// How often an inconsistent dump is repeated.
const DUMP_ATTEMPTS: usize = 16;

/// `struct nlmsghdr`: length, type, flags, sequence number, port ID.
const HEADER: usize = 16;

const NLMSG_NOOP: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLMSG_OVERRUN: u16 = 4;

const NLM_F_REQUEST: u16 = 0x1;
/// The kernel acknowledges the request with `NLMSG_ERROR`, whose error number is 0 on success.
pub const NLM_F_ACK: u16 = 0x4;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_DUMP: u16 = 0x300;
/// Fail with `EEXIST` if the object exists.
pub const NLM_F_EXCL: u16 = 0x200;
/// Make the object if it does not exist.
pub const NLM_F_CREATE: u16 = 0x400;

/// The part of the kernel that a socket talks to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// `NETLINK_ROUTE`: links, addresses, routes.
    Route,
    /// `NETLINK_NETFILTER`: nftables, connection tracking.
    Netfilter,
    /// `NETLINK_USERSOCK`: other processes. Tests play the kernel with it.
    #[cfg(test)]
    User,
}

impl Protocol {
    fn number(self) -> SockProtocol {
        match self {
            Protocol::Route => SockProtocol::NetlinkRoute,
            Protocol::Netfilter => SockProtocol::NetlinkNetFilter,
            #[cfg(test)]
            Protocol::User => SockProtocol::NetlinkUserSock,
        }
    }
}

/// A message to the kernel without its header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The message type.
    pub kind: u16,
    /// Flags besides those that the call itself sets.
    pub flags: u16,
    /// The protocol's own header and the attributes.
    pub body: Vec<u8>,
}

/// A message from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The message type.
    pub kind: u16,
    /// The flags.
    pub flags: u16,
    /// The sequence number of the request that it belongs to.
    pub sequence: u32,
    /// The port ID of the socket whose request it answers. In an event: of the socket that caused it.
    pub port: u32,
    /// The protocol's own header and the attributes.
    pub body: Vec<u8>,
}

/// A socket for requests, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    port: u32,
    /// The sequence number of the last request.
    sequence: u32,
    /// The port ID that replies come from. 0 is the kernel.
    peer: u32,
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Socket {
    /// Open a socket for requests.
    pub fn open(protocol: Protocol) -> io::Result<Socket> {
        let fd = open(protocol, SockFlag::SOCK_CLOEXEC, 0)?;
        socket::setsockopt(&fd, sockopt::ReceiveTimeout, &REPLY_TIMEOUT)?;
        let port = socket::getsockname::<NetlinkAddr>(fd.as_raw_fd())?.pid();
        Ok(Socket { fd, port, sequence: 0, peer: 0 })
    }

    /// The port ID that the kernel gave this socket. Events name the socket that caused them by it.
    pub fn port(&self) -> u32 {
        self.port
    }

    /// Make the kernel refuse dump requests with a filter that it does not know, and apply those that it does know
    /// (`NETLINK_GET_STRICT_CHK`). Without it rtnetlink ignores the filter and dumps everything.
    pub fn check_strictly(&self) -> io::Result<()> {
        strict::enable(self.fd.as_fd())
    }

    /// All messages of a dump, of one moment.
    pub fn dump(&mut self, request: &Request) -> io::Result<Vec<Message>> {
        for _ in 0..DUMP_ATTEMPTS {
            if let Some(messages) = self.dump_once(request)? {
                return Ok(messages);
            }
        }
        Err(io::Error::new(
            io::ErrorKind::Interrupted,
            format!("the kernel's table changed during each of {DUMP_ATTEMPTS} dumps; try again"),
        ))
    }

    /// `None`: the table changed during the dump.
    fn dump_once(&mut self, request: &Request) -> io::Result<Option<Vec<Message>>> {
        let sent = self.send(std::slice::from_ref(request), NLM_F_DUMP)?;
        let mut messages = Vec::new();
        let mut interrupted = false;
        loop {
            for message in self.replies(&sent)? {
                // The flag may also be on the last message alone.
                interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
                match message.kind {
                    // A dump that fails in between ends with a negative error number.
                    NLMSG_DONE => return done(&message).map(|()| (!interrupted).then_some(messages)),
                    NLMSG_ERROR => acknowledgement(&message)?,
                    _ => messages.push(message),
                }
            }
        }
    }

    /// The one message that the kernel replies with.
    pub fn get(&mut self, request: &Request) -> io::Result<Message> {
        let sent = self.send(std::slice::from_ref(request), 0)?;
        loop {
            for message in self.replies(&sent)? {
                match message.kind {
                    NLMSG_ERROR => acknowledgement(&message)?,
                    NLMSG_DONE => done(&message)?,
                    _ => return Ok(message),
                }
            }
        }
    }

    /// A request that the kernel acknowledges.
    pub fn change(&mut self, request: &Request) -> io::Result<()> {
        let sent = self.send(std::slice::from_ref(request), NLM_F_ACK)?;
        self.await_acknowledgements(&sent, 1)
    }

    /// Several requests in one datagram. Those with [`NLM_F_ACK`] are waited for, and the first error is returned.
    pub fn batch(&mut self, requests: &[Request]) -> io::Result<()> {
        let sent = self.send(requests, 0)?;
        let expected = requests.iter().filter(|request| request.flags & NLM_F_ACK != 0).count();
        self.await_acknowledgements(&sent, expected)
    }

    fn await_acknowledgements(&mut self, sent: &Sent, mut expected: usize) -> io::Result<()> {
        while expected > 0 {
            for message in self.replies(sent)?.iter().filter(|message| message.kind == NLMSG_ERROR) {
                acknowledgement(message)?;
                expected = expected.saturating_sub(1);
            }
        }
        Ok(())
    }

    fn send(&mut self, requests: &[Request], flags: u16) -> io::Result<Sent> {
        let first = self.sequence.wrapping_add(1);
        let mut bytes = Vec::new();
        for request in requests {
            self.sequence = self.sequence.wrapping_add(1);
            encode(request, flags | NLM_F_REQUEST, self.sequence, &mut bytes);
        }
        let to = NetlinkAddr::new(self.peer, 0);
        let sent = loop {
            match socket::sendto(self.fd.as_raw_fd(), &bytes, &to, MsgFlags::empty()) {
                Err(Errno::EINTR) => {}
                other => break other?,
            }
        };
        if sent != bytes.len() {
            return Err(io::Error::other("the kernel took only a part of a netlink request"));
        }
        Ok(Sent { first, count: self.sequence.wrapping_sub(first).wrapping_add(1) })
    }

    /// The next messages that belong to these requests; may be none.
    fn replies(&self, sent: &Sent) -> io::Result<Vec<Message>> {
        let mut messages = receive(&self.fd, self.peer)?;
        messages.retain(|message| message.port == self.port && sent.contains(message.sequence));
        match messages.iter().any(|message| message.kind == NLMSG_OVERRUN) {
            true => Err(io::Error::other("the kernel lost a part of its netlink reply")),
            false => Ok(messages),
        }
    }
}

/// The sequence numbers of requests that were sent together.
struct Sent {
    first: u32,
    count: u32,
}

impl Sent {
    fn contains(&self, sequence: u32) -> bool {
        // Sequence numbers wrap around.
        sequence.wrapping_sub(self.first) < self.count
    }
}

/// A socket for multicast events, in the network namespace of the thread that opened it. It never blocks: the descriptor
/// is readable when there are events.
#[derive(Debug)]
pub struct EventSocket {
    fd: OwnedFd,
    peer: u32,
}

/// What an [`EventSocket`] has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Events {
    /// The events of one datagram.
    Messages(Vec<Message>),
    /// Events did not fit into the socket's buffer and are gone (`ENOBUFS`). The caller has to inspect the object itself.
    Lost,
    /// Nothing now.
    None,
}

impl AsFd for EventSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl EventSocket {
    /// Subscribe to multicast groups: bit `n - 1` is group `n`.
    pub fn subscribe(protocol: Protocol, groups: u32) -> io::Result<EventSocket> {
        let fd = open(protocol, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, groups)?;
        Ok(EventSocket { fd, peer: 0 })
    }

    /// The next events, without waiting.
    pub fn read(&mut self) -> io::Result<Events> {
        match receive(&self.fd, self.peer) {
            Ok(messages) => Ok(Events::Messages(messages)),
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN) => Ok(Events::None),
                Some(libc::ENOBUFS) => Ok(Events::Lost),
                _ => Err(error),
            },
        }
    }
}

/// `socket(2)` and `bind(2)`. Port ID 0 lets the kernel choose one.
fn open(protocol: Protocol, flags: SockFlag, groups: u32) -> io::Result<OwnedFd> {
    let fd = socket::socket(AddressFamily::Netlink, SockType::Raw, flags, protocol.number())?;
    socket::bind(fd.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
    Ok(fd)
}

/// The messages of the next datagram. None, if its sender is not `peer`.
fn receive(fd: &OwnedFd, peer: u32) -> io::Result<Vec<Message>> {
    let mut buffer = vec![0; BUFFER_SIZE];
    let (length, sender) = loop {
        let mut parts = [IoSliceMut::new(&mut buffer)];
        match socket::recvmsg::<NetlinkAddr>(fd.as_raw_fd(), &mut parts, None, MsgFlags::empty()) {
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
            Ok(received) if received.flags.contains(MsgFlags::MSG_TRUNC) => {
                return Err(io::Error::other("a netlink message is longer than the buffer"));
            }
            Ok(received) => break (received.bytes, received.address.map(|address| address.pid())),
        }
    };
    if sender != Some(peer) {
        return Ok(Vec::new());
    }
    parse(&buffer[..length]).ok_or_else(|| io::Error::other("a netlink message is malformed"))
}

/// The messages of a datagram; `None` if it is malformed.
fn parse(mut datagram: &[u8]) -> Option<Vec<Message>> {
    let mut messages = Vec::new();
    while !datagram.is_empty() {
        let u32_at = |at: usize| Some(u32::from_ne_bytes(datagram.get(at..at + 4)?.try_into().ok()?));
        let u16_at = |at: usize| Some(u16::from_ne_bytes(datagram.get(at..at + 2)?.try_into().ok()?));
        let length = usize::try_from(u32_at(0)?).ok()?;
        let (kind, flags, sequence, port) = (u16_at(4)?, u16_at(6)?, u32_at(8)?, u32_at(12)?);
        let body = datagram.get(HEADER..length)?;
        if kind != NLMSG_NOOP {
            messages.push(Message { kind, flags, sequence, port, body: body.to_vec() });
        }
        // Messages are padded to four bytes; the last one need not be.
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(messages)
}

fn encode(request: &Request, flags: u16, sequence: u32, bytes: &mut Vec<u8>) {
    let length = HEADER + request.body.len();
    bytes.extend(u32::try_from(length).expect("a request is far below 4 GiB").to_ne_bytes());
    bytes.extend(request.kind.to_ne_bytes());
    bytes.extend((request.flags | flags).to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    // The kernel fills in the sender's port ID.
    bytes.extend(0u32.to_ne_bytes());
    bytes.extend(&request.body);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// `NLMSG_ERROR`: a negative error number, or 0 for success.
fn acknowledgement(message: &Message) -> io::Result<()> {
    error_number(message).ok_or_else(|| io::Error::other("a netlink acknowledgement has no error number"))?
}

/// `NLMSG_DONE`: nothing, or a number that is negative if the dump failed.
fn done(message: &Message) -> io::Result<()> {
    error_number(message).unwrap_or(Ok(()))
}

fn error_number(message: &Message) -> Option<io::Result<()>> {
    let number = i32::from_ne_bytes(message.body.get(..4)?.try_into().ok()?);
    Some(if number < 0 { Err(io::Error::from_raw_os_error(number.saturating_neg())) } else { Ok(()) })
}

mod strict {
    //! `NETLINK_GET_STRICT_CHK`, which nix does not have.
    #![allow(unsafe_code)]

    use std::io;
    use std::os::fd::{AsRawFd, BorrowedFd};

    pub(super) fn enable(socket: BorrowedFd<'_>) -> io::Result<()> {
        let on: libc::c_int = 1;
        let length = libc::socklen_t::try_from(size_of::<libc::c_int>()).expect("a small size");
        // SAFETY: the kernel reads one `int` from `on`, which lives until the call returns, and the descriptor is open.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_NETLINK,
                libc::NETLINK_GET_STRICT_CHK,
                (&raw const on).cast(),
                length,
            )
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}
