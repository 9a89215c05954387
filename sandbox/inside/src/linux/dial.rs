//! Makes a socket in the sandbox's network, for the launcher.
//!
//! Entering the user namespace that owns a network takes a program with one thread, which the
//! launcher is not; so this one is started for the moment it takes.

use super::channel;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::process::ExitCode;

/// Standard input is a socket to the launcher, on which come the network namespace and, if it must
/// be entered first, the user namespace that owns it. The answer is one TCP socket, unconnected.
pub fn run() -> ExitCode {
    match answer() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = channel::send(io::stdin().as_fd(), error.to_string().as_bytes(), &[]);
            ExitCode::from(74)
        }
    }
}

fn answer() -> io::Result<()> {
    let input = io::stdin();
    let message = channel::receive(input.as_fd())?;
    match &message.descriptors[..] {
        [network] => setns(network, CloneFlags::CLONE_NEWNET)?,
        [network, user] => {
            setns(user, CloneFlags::CLONE_NEWUSER)?;
            setns(network, CloneFlags::CLONE_NEWNET)?;
        }
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    }
    let socket = socket(
        AddressFamily::Inet,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    channel::send(input.as_fd(), b"socket", &[socket.as_raw_fd()])
}
