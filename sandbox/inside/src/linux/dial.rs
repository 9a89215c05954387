//! Creates a socket in the sandbox's network namespace for the launcher.
//!
//! `setns` into a user namespace needs a single-threaded process. The launcher has several threads,
//! so it starts this short-lived program.

use super::channel;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::process::ExitCode;

/// Standard input is a socket to the launcher. It delivers the network namespace and, if that must
/// be entered first, the user namespace that owns it. The reply is one unconnected TCP socket.
pub fn run() -> ExitCode {
    match send_socket() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = channel::send(io::stdin().as_fd(), error.to_string().as_bytes(), &[]);
            ExitCode::from(74)
        }
    }
}

fn send_socket() -> io::Result<()> {
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
    let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    channel::send(input.as_fd(), b"socket", &[socket.as_raw_fd()])
}
