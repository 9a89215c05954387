//! The sockets between launcher and stages. They carry whole messages with descriptors attached.

use super::sys;
use crate::protocol::{MAX_DESCRIPTORS, MAX_RECORD};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, recvmsg,
    sendmsg, setsockopt, socketpair, sockopt,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// A message that was received.
#[derive(Debug, Default)]
pub struct Message {
    /// Its bytes; empty at the end of the stream.
    pub bytes: Vec<u8>,
    /// The descriptors that came with it.
    pub descriptors: Vec<OwnedFd>,
    /// The sender's process id as reported by the kernel, if enabled with [`want_sender`].
    pub sender: Option<i32>,
}

/// Two connected close-on-exec sockets that preserve message boundaries (`SOCK_SEQPACKET`).
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?)
}

/// Makes the kernel attach the sender's credentials to each message (`SO_PASSCRED`).
pub fn want_sender(socket: BorrowedFd<'_>) -> io::Result<()> {
    Ok(setsockopt(&socket, sockopt::PassCred, &true)?)
}

/// Sends one message.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[RawFd]) -> io::Result<()> {
    let rights = [ControlMessage::ScmRights(descriptors)];
    let control = if descriptors.is_empty() { &[] } else { &rights[..] };
    let sent = sendmsg::<UnixAddr>(
        socket.as_raw_fd(),
        &[IoSlice::new(bytes)],
        control,
        MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Receives one message.
pub fn receive(socket: BorrowedFd<'_>) -> io::Result<Message> {
    let mut bytes = vec![0; MAX_RECORD];
    let mut space = nix::cmsg_space!([RawFd; MAX_DESCRIPTORS], libc::ucred);
    let mut message = Message::default();
    let length = {
        let mut slices = [IoSliceMut::new(&mut bytes)];
        let received = loop {
            match recvmsg::<UnixAddr>(
                socket.as_raw_fd(),
                &mut slices,
                Some(&mut space),
                MsgFlags::MSG_CMSG_CLOEXEC,
            ) {
                Err(nix::errno::Errno::EINTR) => continue,
                other => break other?,
            }
        };
        for part in received.cmsgs()? {
            match part {
                ControlMessageOwned::ScmRights(numbers) => {
                    for number in numbers {
                        // The kernel created these descriptors for this call, so they have no owner yet.
                        message.descriptors.push(sys::own(number)?);
                    }
                }
                ControlMessageOwned::ScmCredentials(credentials) => {
                    message.sender = Some(credentials.pid());
                }
                _ => {}
            }
        }
        if received.flags.intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "message exceeds the maximum length"));
        }
        received.bytes
    };
    bytes.truncate(length);
    message.bytes = bytes;
    Ok(message)
}

/// Sends a record as JSON.
pub fn send_record(
    socket: &impl AsFd,
    record: &crate::protocol::Record,
    descriptors: &[RawFd],
) -> io::Result<()> {
    let bytes = serde_json::to_vec(record)?;
    send(socket.as_fd(), &bytes, descriptors)
}
