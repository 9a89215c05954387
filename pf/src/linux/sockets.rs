//! Sockets that are used again.
//!
//! To close one takes the kernel until nothing refers to what was last removed from any set, by whomever: some ten
//! milliseconds, in which a destroyed clone would be waited for. So they stay open. And news can tell what is done by
//! them from what others do.

use super::netlink::Socket;
use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The sockets of one firewall. Copies are the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Sockets(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    /// Each with the number of its network namespace. As long as it is open no other namespace gets that number.
    idle: Vec<(u64, Socket)>,
    /// The numbers of all that are open.
    ports: BTreeSet<u32>,
}

impl Sockets {
    /// Use a socket of the calling thread's network namespace. One that had a failure is not used again.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Socket) -> io::Result<T>) -> io::Result<T> {
        let namespace = std::fs::metadata("/proc/thread-self/ns/net")?.ino();
        let mut socket = self.take(namespace)?;
        let result = work(&mut socket);
        let mut inner = self.inner();
        match &result {
            Ok(_) => inner.idle.push((namespace, socket)),
            Err(_) => drop(inner.ports.remove(&socket.port())),
        }
        result
    }

    /// Whether the socket with this number is one of these.
    pub(super) fn has(&self, port: u32) -> bool {
        self.inner().ports.contains(&port)
    }

    fn take(&self, namespace: u64) -> io::Result<Socket> {
        let mut inner = self.inner();
        if let Some(at) = inner.idle.iter().position(|(of, _)| *of == namespace) {
            return Ok(inner.idle.swap_remove(at).1);
        }
        let socket = Socket::open()?;
        inner.ports.insert(socket.port());
        Ok(socket)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
