//! Netfilter sockets that are kept open and reused.
//!
//! `close(2)` of a netfilter socket waits for an RCU grace period if any process has just removed an element from a set:
//! about ten milliseconds, for which a destroy would wait. So sockets stay open. Their port IDs also tell which events
//! were caused by this process.

use super::netlink::Socket;
use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The sockets of one firewall. Copies share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Sockets(Arc<Mutex<OpenSockets>>);

#[derive(Debug, Default)]
struct OpenSockets {
    /// Sockets that no call uses now, each with the inode of its network namespace. An open socket keeps its namespace,
    /// so no other namespace gets that inode.
    idle: Vec<(u64, Socket)>,
    /// The port IDs of all open sockets.
    ports: BTreeSet<u32>,
}

impl Sockets {
    /// Use a socket of the calling thread's network namespace. A socket that had an error is closed, because replies to
    /// the failed request may still be queued on it.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Socket) -> io::Result<T>) -> io::Result<T> {
        let namespace = std::fs::metadata("/proc/thread-self/ns/net")?.ino();
        let mut socket = self.take(namespace)?;
        let result = work(&mut socket);
        let mut open = self.open();
        match &result {
            Ok(_) => open.idle.push((namespace, socket)),
            Err(_) => drop(open.ports.remove(&socket.port())),
        }
        result
    }

    /// Whether the socket with this port ID is one of these.
    pub(super) fn has(&self, port: u32) -> bool {
        self.open().ports.contains(&port)
    }

    fn take(&self, namespace: u64) -> io::Result<Socket> {
        let mut open = self.open();
        if let Some(at) = open.idle.iter().position(|(of, _)| *of == namespace) {
            return Ok(open.idle.swap_remove(at).1);
        }
        let socket = Socket::open()?;
        open.ports.insert(socket.port());
        Ok(socket)
    }

    fn open(&self) -> MutexGuard<'_, OpenSockets> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
