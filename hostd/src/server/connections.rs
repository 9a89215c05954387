//! The caps on connections, and which connection is evicted at a cap.
//!
//! At the cap of a user, the user's longest idle connection is evicted, so a client that leaks connections harms only its
//! own user. At the cap of the daemon, the user with the most connections loses one. A served request counts as ten
//! seconds of use, so a flood of unused connections does not evict a client that pauses between two calls. A
//! connection with a running request is never evicted; without an idle one the new connection is refused.

use crate::metrics::Metrics;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::Notify;

/// How long a served request counts as use of its connection, in microseconds.
const CREDIT: u64 = 10_000_000;

/// What the caps are decided on: the connection's user and since when it is idle (`None`: busy).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ConnectionUse {
    uid: u32,
    idle_since: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct ConnectionCaps {
    total: usize,
    per_user: usize,
}

#[derive(Debug, PartialEq, Eq)]
enum Admission {
    Admit,
    Evict(u64),
    Refuse(&'static str),
}

fn decide(open: &BTreeMap<u64, ConnectionUse>, uid: u32, caps: ConnectionCaps) -> Admission {
    let mut counts: HashMap<u32, usize> = HashMap::new();
    for connection in open.values() {
        *counts.entry(connection.uid).or_default() += 1;
    }
    let (evicted_user, limit) = if counts.get(&uid).is_some_and(|count| *count >= caps.per_user) {
        (uid, "connections_per_user")
    } else if open.len() >= caps.total {
        let most = counts.into_iter().max_by_key(|(uid, count)| (*count, *uid));
        (most.map_or(uid, |(uid, _)| uid), "connections")
    } else {
        return Admission::Admit;
    };
    let idle = open.iter().filter(|(_, connection)| connection.uid == evicted_user);
    let longest = idle.filter_map(|(id, connection)| Some((connection.idle_since?, *id))).min();
    match longest {
        Some((_, id)) => Admission::Evict(id),
        None => Admission::Refuse(limit),
    }
}

/// The activity of one connection, read when another connection is admitted.
#[derive(Debug, Default)]
struct ConnectionActivity {
    running: AtomicUsize,
    /// The time from which it counts as idle, in microseconds since the daemon's start.
    idle_from: AtomicU64,
}

#[derive(Debug)]
struct ConnectionEntry {
    uid: u32,
    activity: Arc<ConnectionActivity>,
    evicted: Arc<Notify>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    next: u64,
    entries: BTreeMap<u64, ConnectionEntry>,
}

/// All open connections.
#[derive(Debug)]
pub struct Connections {
    caps: ConnectionCaps,
    started: Instant,
    metrics: Arc<Metrics>,
    open: Mutex<OpenConnections>,
}

impl Connections {
    /// No connections yet. Both caps are at least 1.
    pub fn new(total: usize, per_user: usize, metrics: Arc<Metrics>) -> Arc<Self> {
        let caps = ConnectionCaps { total: total.max(1), per_user: per_user.max(1) };
        Arc::new(Self { caps, started: Instant::now(), metrics, open: Mutex::default() })
    }

    /// Admit a connection of this user, or return the name of the limit that refuses it.
    pub fn admit(self: &Arc<Self>, uid: u32) -> Result<ConnectionTicket, &'static str> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let usage = open.entries.iter().map(|(id, entry)| (*id, entry.usage())).collect();
        match decide(&usage, uid, self.caps) {
            Admission::Admit => {}
            Admission::Evict(id) => {
                if let Some(entry) = open.entries.remove(&id) {
                    self.metrics.limit_rejection("idle_connections");
                    entry.evicted.notify_one();
                }
            }
            Admission::Refuse(limit) => {
                self.metrics.limit_rejection(limit);
                return Err(limit);
            }
        }
        let id = open.next;
        open.next += 1;
        let activity = Arc::new(ConnectionActivity::default());
        let evicted = Arc::new(Notify::new());
        open.entries
            .insert(id, ConnectionEntry { uid, activity: activity.clone(), evicted: evicted.clone() });
        self.metrics.set_connections(open.entries.len() as u64);
        drop(open);
        let ticket = ConnectionTicket { id, connections: self.clone(), activity, evicted };
        ticket.touch();
        Ok(ticket)
    }

    /// The number of open connections.
    pub fn count(&self) -> usize {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).entries.len()
    }

    fn leave(&self, id: u64) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.entries.remove(&id);
        self.metrics.set_connections(open.entries.len() as u64);
    }
}

impl ConnectionEntry {
    fn usage(&self) -> ConnectionUse {
        let idle = self.activity.running.load(Ordering::Relaxed) == 0;
        ConnectionUse {
            uid: self.uid,
            idle_since: idle.then(|| self.activity.idle_from.load(Ordering::Relaxed)),
        }
    }
}

/// The entry of one connection, removed on drop.
#[derive(Debug)]
pub struct ConnectionTicket {
    id: u64,
    connections: Arc<Connections>,
    activity: Arc<ConnectionActivity>,
    evicted: Arc<Notify>,
}

impl ConnectionTicket {
    /// The connection's number, for the logs.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// A request begins.
    pub fn begin(&self) {
        self.activity.running.fetch_add(1, Ordering::Relaxed);
    }

    /// A running request was answered.
    pub fn end(&self) {
        self.activity.running.fetch_sub(1, Ordering::Relaxed);
        self.served();
    }

    /// A request was served, not refused.
    pub fn served(&self) {
        self.used_until(self.now().saturating_add(CREDIT));
    }

    /// A line came.
    pub fn touch(&self) {
        self.used_until(self.now());
    }

    fn used_until(&self, moment: u64) {
        self.activity.idle_from.fetch_max(moment, Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        u64::try_from(self.connections.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// The number of running requests.
    pub fn under_way(&self) -> usize {
        self.activity.running.load(Ordering::Relaxed)
    }

    /// Waits until the connection is evicted.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

impl Drop for ConnectionTicket {
    fn drop(&mut self) {
        self.connections.leave(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn open(list: &[(u64, u32, Option<u64>)]) -> BTreeMap<u64, ConnectionUse> {
        list.iter()
            .map(|(id, uid, idle_since)| (*id, ConnectionUse { uid: *uid, idle_since: *idle_since }))
            .collect()
    }

    #[test]
    fn below_the_caps_every_connection_is_admitted() {
        let caps = ConnectionCaps { total: 3, per_user: 2 };
        assert_eq!(decide(&open(&[]), 1, caps), Admission::Admit);
        assert_eq!(decide(&open(&[(0, 1, None), (1, 2, None)]), 1, caps), Admission::Admit);
    }

    #[test]
    fn at_the_user_cap_the_longest_idle_connection_is_evicted() {
        let caps = ConnectionCaps { total: 10, per_user: 3 };
        let now = [(0, 1, Some(50)), (1, 1, None), (2, 1, Some(40)), (3, 2, Some(1))];
        assert_eq!(decide(&open(&now), 1, caps), Admission::Evict(2));
        assert_eq!(decide(&open(&now), 2, caps), Admission::Admit);
        let busy = [(0, 1, None), (1, 1, None), (2, 1, None), (3, 2, Some(1))];
        assert_eq!(decide(&open(&busy), 1, caps), Admission::Refuse("connections_per_user"));
    }

    #[test]
    fn at_the_total_cap_the_user_with_most_connections_loses_one() {
        let caps = ConnectionCaps { total: 4, per_user: 4 };
        let now = [(0, 2, Some(1)), (1, 1, Some(90)), (2, 1, Some(80)), (3, 1, None)];
        for newcomer in [1, 2, 3] {
            assert_eq!(decide(&open(&now), newcomer, caps), Admission::Evict(2), "{newcomer}");
        }
        let busy = [(0, 2, Some(1)), (1, 1, None), (2, 1, None), (3, 1, None)];
        assert_eq!(decide(&open(&busy), 2, caps), Admission::Refuse("connections"));
    }

    #[test]
    fn the_user_cap_is_checked_before_the_total() {
        let caps = ConnectionCaps { total: 3, per_user: 1 };
        let now = [(0, 1, Some(9)), (1, 2, Some(1)), (2, 3, Some(2))];
        assert_eq!(decide(&open(&now), 1, caps), Admission::Evict(0));
    }

    #[tokio::test]
    async fn entries_are_removed_on_drop_and_evictions_are_signalled() {
        let metrics = Arc::new(Metrics::new());
        let connections = Connections::new(8, 2, metrics.clone());
        let first = connections.admit(1).unwrap();
        let second = connections.admit(1).unwrap();
        assert_eq!(connections.count(), 2);
        assert_ne!(first.id(), second.id());
        second.begin();
        let third = connections.admit(1).unwrap();
        first.evicted().await;
        assert_eq!(connections.count(), 2);
        drop(first);
        assert_eq!(connections.count(), 2, "an evicted connection has no entry any more");
        third.begin();
        assert_eq!(connections.admit(1).unwrap_err(), "connections_per_user");
        assert_eq!(second.under_way(), 1);
        second.end();
        assert_eq!(second.under_way(), 0);
        drop(second);
        assert_eq!(connections.count(), 1);
        let text = metrics.text();
        assert!(text.contains("hostd_connections 1\n"), "{text}");
        assert!(text.contains("hostd_limit_rejections_total{limit=\"idle_connections\"} 1\n"), "{text}");
        assert!(text.contains("hostd_limit_rejections_total{limit=\"connections_per_user\"} 1\n"), "{text}");
    }

    #[tokio::test]
    async fn the_connection_used_last_stays() {
        let connections = Connections::new(8, 2, Arc::new(Metrics::new()));
        let first = connections.admit(1).unwrap();
        let second = connections.admit(1).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1));
        first.touch();
        let _third = connections.admit(1).unwrap();
        second.evicted().await;
        drop((first, second));
        assert_eq!(connections.count(), 1);
    }

    #[tokio::test]
    async fn a_flood_of_connections_does_not_evict_an_active_client() {
        let connections = Connections::new(8, 3, Arc::new(Metrics::new()));
        let active = connections.admit(1).unwrap();
        active.served();
        std::thread::sleep(std::time::Duration::from_millis(1));
        let credit = active.activity.idle_from.load(Ordering::Relaxed);
        assert!((CREDIT..CREDIT + 60_000_000).contains(&credit), "{credit}");
        assert!(connections.admit(2).unwrap().activity.idle_from.load(Ordering::Relaxed) < CREDIT);
        let flood: Vec<ConnectionTicket> = (0..100).map(|_| connections.admit(1).unwrap()).collect();
        assert!(active.evicted().now_or_never().is_none());
        assert_eq!(flood.iter().filter(|ticket| ticket.evicted().now_or_never().is_some()).count(), 98);
    }
}
