//! How many connections there may be, and which one goes when there are too many.
//!
//! A user at the cap loses the connection that has been idle longest, so a client that forgot to
//! close its connections harms only itself. A request that was served counts like some seconds of use,
//! so a flood of connections that ask for nothing does not push out a client that pauses between two
//! calls. At the cap of the whole daemon the user with the most connections pays. A connection with a request under way is never taken; if there is no idle one
//! the newcomer is refused.

use crate::metrics::Metrics;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::Notify;

/// How much longer a connection counts as used after a request that was served, in microseconds.
const CREDIT: u64 = 10_000_000;

/// What the caps decide on: whose a connection is, and since when it is idle (`None`: busy).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    uid: u32,
    idle_since: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Caps {
    total: usize,
    per_user: usize,
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Welcome,
    Instead(u64),
    Refused(&'static str),
}

fn judge(open: &BTreeMap<u64, Seen>, uid: u32, caps: Caps) -> Verdict {
    let mut counts: HashMap<u32, usize> = HashMap::new();
    for seen in open.values() {
        *counts.entry(seen.uid).or_default() += 1;
    }
    let (payer, limit) = if counts.get(&uid).is_some_and(|count| *count >= caps.per_user) {
        (uid, "connections_per_user")
    } else if open.len() >= caps.total {
        let most = counts.into_iter().max_by_key(|(uid, count)| (*count, *uid));
        (most.map_or(uid, |(uid, _)| uid), "connections")
    } else {
        return Verdict::Welcome;
    };
    let idle = open.iter().filter(|(_, seen)| seen.uid == payer);
    let longest = idle.filter_map(|(id, seen)| Some((seen.idle_since?, *id))).min();
    match longest {
        Some((_, id)) => Verdict::Instead(id),
        None => Verdict::Refused(limit),
    }
}

/// What one connection is doing, written by it and read when another one comes.
#[derive(Debug, Default)]
struct Activity {
    under_way: AtomicUsize,
    /// When it counts as idle from, in microseconds since the start.
    idle_from: AtomicU64,
}

#[derive(Debug)]
struct Entry {
    uid: u32,
    activity: Arc<Activity>,
    evicted: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    entries: BTreeMap<u64, Entry>,
}

/// All open connections.
#[derive(Debug)]
pub struct Connections {
    caps: Caps,
    started: Instant,
    metrics: Arc<Metrics>,
    open: Mutex<Open>,
}

impl Connections {
    /// None yet. Both caps count at least as 1.
    pub fn new(total: usize, per_user: usize, metrics: Arc<Metrics>) -> Arc<Self> {
        let caps = Caps { total: total.max(1), per_user: per_user.max(1) };
        Arc::new(Self { caps, started: Instant::now(), metrics, open: Mutex::default() })
    }

    /// A place for a connection of this user, or the name of the limit that refuses it.
    pub fn admit(self: &Arc<Self>, uid: u32) -> Result<Ticket, &'static str> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = open.entries.iter().map(|(id, entry)| (*id, entry.seen())).collect();
        match judge(&seen, uid, self.caps) {
            Verdict::Welcome => {}
            Verdict::Instead(id) => {
                if let Some(entry) = open.entries.remove(&id) {
                    self.metrics.limit_rejection("idle_connections");
                    entry.evicted.notify_one();
                }
            }
            Verdict::Refused(limit) => {
                self.metrics.limit_rejection(limit);
                return Err(limit);
            }
        }
        let id = open.next;
        open.next += 1;
        let activity = Arc::new(Activity::default());
        let evicted = Arc::new(Notify::new());
        open.entries.insert(id, Entry { uid, activity: activity.clone(), evicted: evicted.clone() });
        self.metrics.set_connections(open.entries.len() as u64);
        drop(open);
        let ticket = Ticket { id, connections: self.clone(), activity, evicted };
        ticket.touch();
        Ok(ticket)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).entries.len()
    }

    fn leave(&self, id: u64) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.entries.remove(&id);
        self.metrics.set_connections(open.entries.len() as u64);
    }
}

impl Entry {
    fn seen(&self) -> Seen {
        let idle = self.activity.under_way.load(Ordering::Relaxed) == 0;
        Seen { uid: self.uid, idle_since: idle.then(|| self.activity.idle_from.load(Ordering::Relaxed)) }
    }
}

/// The place of one connection; given back when dropped.
#[derive(Debug)]
pub struct Ticket {
    id: u64,
    connections: Arc<Connections>,
    activity: Arc<Activity>,
    evicted: Arc<Notify>,
}

impl Ticket {
    /// The connection's number, for the logs.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// A request is under way from now on.
    pub fn begin(&self) {
        self.activity.under_way.fetch_add(1, Ordering::Relaxed);
    }

    /// A request that was under way is answered.
    pub fn end(&self) {
        self.activity.under_way.fetch_sub(1, Ordering::Relaxed);
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

    /// How many requests are under way.
    pub fn under_way(&self) -> usize {
        self.activity.under_way.load(Ordering::Relaxed)
    }

    /// Waits until the place is needed by another connection.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.connections.leave(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn open(list: &[(u64, u32, Option<u64>)]) -> BTreeMap<u64, Seen> {
        list.iter().map(|(id, uid, idle_since)| (*id, Seen { uid: *uid, idle_since: *idle_since })).collect()
    }

    #[test]
    fn below_the_caps_everybody_is_welcome() {
        let caps = Caps { total: 3, per_user: 2 };
        assert_eq!(judge(&open(&[]), 1, caps), Verdict::Welcome);
        assert_eq!(judge(&open(&[(0, 1, None), (1, 2, None)]), 1, caps), Verdict::Welcome);
    }

    #[test]
    fn a_user_at_the_cap_pays_with_the_longest_idle() {
        let caps = Caps { total: 10, per_user: 3 };
        let now = [(0, 1, Some(50)), (1, 1, None), (2, 1, Some(40)), (3, 2, Some(1))];
        assert_eq!(judge(&open(&now), 1, caps), Verdict::Instead(2));
        assert_eq!(judge(&open(&now), 2, caps), Verdict::Welcome);
        let busy = [(0, 1, None), (1, 1, None), (2, 1, None), (3, 2, Some(1))];
        assert_eq!(judge(&open(&busy), 1, caps), Verdict::Refused("connections_per_user"));
    }

    #[test]
    fn at_the_total_cap_the_largest_user_pays() {
        let caps = Caps { total: 4, per_user: 4 };
        let now = [(0, 2, Some(1)), (1, 1, Some(90)), (2, 1, Some(80)), (3, 1, None)];
        for newcomer in [1, 2, 3] {
            assert_eq!(judge(&open(&now), newcomer, caps), Verdict::Instead(2), "{newcomer}");
        }
        let busy = [(0, 2, Some(1)), (1, 1, None), (2, 1, None), (3, 1, None)];
        assert_eq!(judge(&open(&busy), 2, caps), Verdict::Refused("connections"));
    }

    #[test]
    fn the_users_own_cap_goes_before_the_total() {
        let caps = Caps { total: 3, per_user: 1 };
        let now = [(0, 1, Some(9)), (1, 2, Some(1)), (2, 3, Some(2))];
        assert_eq!(judge(&open(&now), 1, caps), Verdict::Instead(0));
    }

    #[tokio::test]
    async fn places_are_given_back_and_evicted_ones_told() {
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
        assert_eq!(connections.count(), 2, "an evicted connection gave its place back already");
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
    async fn the_one_used_last_stays() {
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
    async fn a_flood_does_not_push_out_a_client_at_work() {
        let connections = Connections::new(8, 3, Arc::new(Metrics::new()));
        let at_work = connections.admit(1).unwrap();
        at_work.served();
        std::thread::sleep(std::time::Duration::from_millis(1));
        let credit = at_work.activity.idle_from.load(Ordering::Relaxed);
        assert!((CREDIT..CREDIT + 60_000_000).contains(&credit), "{credit}");
        assert!(connections.admit(2).unwrap().activity.idle_from.load(Ordering::Relaxed) < CREDIT);
        let flood: Vec<Ticket> = (0..100).map(|_| connections.admit(1).unwrap()).collect();
        assert!(at_work.evicted().now_or_never().is_none());
        assert_eq!(flood.iter().filter(|ticket| ticket.evicted().now_or_never().is_some()).count(), 98);
    }
}
