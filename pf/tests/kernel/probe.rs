//! Connects to many addresses at once and reports which accept.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, getsockopt, socket, sockopt,
};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Blocked targets never answer. Open ones answer at once, or after the first retransmission (one second).
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);

/// Which targets accept a TCP connection from the calling thread's network namespace.
pub(crate) fn reachable(targets: &[SocketAddr]) -> Vec<bool> {
    let mut open = vec![false; targets.len()];
    let mut pending: Vec<(usize, OwnedFd)> = Vec::new();
    for (index, target) in targets.iter().enumerate() {
        let family = if target.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let fd = socket(family, SockType::Stream, flags, None).expect("a socket");
        match connect(fd.as_raw_fd(), &SockaddrStorage::from(*target)) {
            Err(Errno::EINPROGRESS) => pending.push((index, fd)),
            Ok(()) => open[index] = true,
            // For example no route: not reachable.
            Err(_) => {}
        }
    }
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    while !pending.is_empty() && Instant::now() < deadline {
        let ready: Vec<bool> = {
            let mut polled: Vec<PollFd<'_>> =
                pending.iter().map(|(_, fd)| PollFd::new(fd.as_fd(), PollFlags::POLLOUT)).collect();
            let left = deadline.saturating_duration_since(Instant::now());
            poll(&mut polled, PollTimeout::try_from(left).expect("short")).expect("poll");
            polled.iter().map(|fd| fd.any().unwrap_or(false)).collect()
        };
        let mut ready = ready.into_iter();
        pending.retain(|(index, fd)| {
            if !ready.next().expect("one each") {
                return true;
            }
            open[*index] = getsockopt(fd, sockopt::SocketError).expect("its result") == 0;
            false
        });
    }
    open
}

pub(crate) fn reaches(target: &str) -> bool {
    reachable(&[target.parse().expect("an address and a port")])[0]
}
