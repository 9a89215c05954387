//! Linux: `SO_PEERCRED`, `SO_PEERGROUPS`, boot id, boot-time clock.

#![allow(unsafe_code)]

use super::{DefaultDirs, Peer};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// The usual folders.
pub fn default_dirs() -> DefaultDirs {
    DefaultDirs::linux()
}

/// Limit glibc to two malloc arenas. By default every thread that writes a record gets an arena of its own.
pub fn spare_memory() {
    // SAFETY: mallopt only changes a parameter of the allocator, and no other thread exists yet.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 2) };
}

/// The id of this boot.
pub fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Time since boot, including suspend. It cannot be set.
pub fn monotonic() -> Duration {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME)
        .expect("CLOCK_BOOTTIME exists since Linux 2.6");
    Duration::from(now)
}

/// The credentials of the peer.
pub fn peer(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    let cred = nix::sys::socket::getsockopt(&socket, nix::sys::socket::sockopt::PeerCredentials)?;
    let mut gids = vec![cred.gid()];
    gids.extend(supplementary_groups(socket)?.into_iter().filter(|gid| *gid != cred.gid()));
    Ok(Peer { uid: cred.uid(), gids, pid: Some(cred.pid()) })
}

fn supplementary_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    // NGROUPS_MAX is 65536; for a smaller buffer the kernel returns ERANGE and the needed size.
    let mut groups = vec![0u32; 64];
    loop {
        let mut bytes =
            libc::socklen_t::try_from(std::mem::size_of_val(groups.as_slice())).expect("a small buffer");
        // SAFETY: the buffer is valid for `bytes` bytes and any bit pattern is a valid gid; the kernel
        // writes at most `bytes` bytes and stores the length used or needed in `bytes`.
        let done = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let count = bytes as usize / size_of::<u32>();
        if done == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_socket_pair_reports_our_own_credentials() {
        let (one, _two) = std::os::unix::net::UnixStream::pair().unwrap();
        let peer = peer(one.as_fd()).unwrap();
        assert_eq!(peer.uid, nix::unistd::geteuid().as_raw());
        assert_eq!(peer.gids[0], nix::unistd::getegid().as_raw());
        assert_eq!(peer.pid, Some(std::process::id() as i32));
        for group in nix::unistd::getgroups().unwrap() {
            assert!(peer.gids.contains(&group.as_raw()), "{group} missing in {:?}", peer.gids);
        }
    }

    #[test]
    fn the_clock_advances_and_the_boot_id_is_constant() {
        let before = monotonic();
        std::thread::sleep(Duration::from_millis(2));
        assert!(monotonic() > before);
        assert_eq!(boot_id().unwrap(), boot_id().unwrap());
        assert!(boot_id().unwrap().len() >= 32);
    }
}
