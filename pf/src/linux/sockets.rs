//! Sockets that are used again.
//!
//! To close one takes the kernel until nothing refers to what was last removed from any set, by whomever: some ten
//! milliseconds, in which a destroyed clone would be waited for. So they stay open.

use super::netlink::Socket;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, PoisonError};

/// Idle sockets, each with the number of its network namespace. As long as a socket is open no other namespace gets that
/// number.
#[derive(Debug, Default)]
pub(super) struct Sockets(Mutex<Vec<(u64, Socket)>>);

impl Sockets {
    /// Use a socket of the calling thread's network namespace. One that had a failure is not used again.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Socket) -> io::Result<T>) -> io::Result<T> {
        let namespace = std::fs::metadata("/proc/thread-self/ns/net")?.ino();
        let idle = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = {
            let mut idle = idle();
            idle.iter().position(|(of, _)| *of == namespace).map(|at| idle.swap_remove(at).1)
        };
        let mut socket = match kept {
            Some(socket) => socket,
            None => Socket::open()?,
        };
        let result = work(&mut socket)?;
        idle().push((namespace, socket));
        Ok(result)
    }
}
