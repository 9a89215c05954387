//! Rate limits: one token bucket for each user and each kind of call.
//!
//! A bucket is stored as the time at which it will be full again (generic cell rate algorithm), so no timer refills it
//! and a full bucket needs no memory.

use crate::api::Method;
use crate::config::ServerConfig;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Calls that share a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallKind {
    /// `browser-clone-create` of a new clone.
    Create,
    /// `browser-clone-create` that renews the lease of a clone.
    Renewal,
    /// `browser-clone-destroy` and `browser-clone-force-unmount`.
    Destroy,
    /// `browser-clone-reap`.
    Reap,
    /// Everything that does not change the host.
    Read,
}

impl CallKind {
    /// The kind of a method; a create is taken for one of a new clone.
    pub fn of(method: Method) -> CallKind {
        match method {
            Method::Create => CallKind::Create,
            Method::Destroy | Method::ForceUnmount => CallKind::Destroy,
            Method::Reap => CallKind::Reap,
            Method::List | Method::Status | Method::Discover => CallKind::Read,
        }
    }

    /// The limit's name in the metrics.
    pub fn limit(self) -> &'static str {
        match self {
            CallKind::Create => "create_rate",
            CallKind::Renewal => "renewal_rate",
            CallKind::Destroy => "destroy_rate",
            CallKind::Reap => "reap_rate",
            CallKind::Read => "read_rate",
        }
    }

    /// Whether the limit applies to operators. They must always be able to look and to remove.
    fn limits_operators(self) -> bool {
        self == CallKind::Create
    }
}

/// A call that comes too early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooEarly {
    /// The configured rate.
    pub per_minute: u32,
    /// The time until the next call.
    pub wait: Duration,
}

/// The rate limits of all users.
#[derive(Debug)]
pub struct RateLimits {
    creates: Mutex<UserBuckets>,
    renewals: Mutex<UserBuckets>,
    destroys: Mutex<UserBuckets>,
    reaps: Mutex<UserBuckets>,
    reads: Mutex<UserBuckets>,
}

impl RateLimits {
    /// The configured limits; all buckets are full.
    pub fn new(config: &ServerConfig) -> RateLimits {
        let buckets = |per_minute, burst| Mutex::new(UserBuckets::new(per_minute, burst));
        RateLimits {
            creates: buckets(config.creates_per_minute, config.create_burst),
            renewals: buckets(config.renewals_per_minute, config.renewal_burst),
            destroys: buckets(config.destroys_per_minute, config.destroy_burst),
            reaps: buckets(config.reaps_per_minute, config.reap_burst),
            reads: buckets(config.reads_per_minute, config.read_burst),
        }
    }

    /// Take a token for a call of this user. `now` is a monotonic clock.
    pub fn take(&self, kind: CallKind, uid: u32, operator: bool, now: Duration) -> Result<(), TooEarly> {
        if operator && !kind.limits_operators() {
            return Ok(());
        }
        let buckets = match kind {
            CallKind::Create => &self.creates,
            CallKind::Renewal => &self.renewals,
            CallKind::Destroy => &self.destroys,
            CallKind::Reap => &self.reaps,
            CallKind::Read => &self.reads,
        };
        let mut buckets = buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let per_minute = buckets.per_minute;
        buckets.take(uid, now).map_err(|wait| TooEarly { per_minute, wait })
    }
}

/// The buckets of all users for one kind of call.
#[derive(Debug)]
struct UserBuckets {
    per_minute: u32,
    /// The time to refill one token.
    refill: Duration,
    /// The time to refill all but one token.
    depth: Duration,
    /// When the user's bucket will be full.
    full_at: HashMap<u32, Duration>,
}

impl UserBuckets {
    /// Full buckets with `burst` tokens and a refill of `per_minute` tokens per minute. Both are at least 1.
    fn new(per_minute: u32, burst: u32) -> Self {
        let refill = Duration::from_secs(60) / per_minute.max(1);
        Self { per_minute, refill, depth: refill * (burst.max(1) - 1), full_at: HashMap::new() }
    }

    /// Take a token from a user's bucket, or return the time until the next one.
    fn take(&mut self, uid: u32, now: Duration) -> Result<(), Duration> {
        let full_at = self.full_at.get(&uid).copied().unwrap_or(now).max(now);
        let missing = full_at - now;
        if missing > self.depth {
            return Err(missing - self.depth);
        }
        self.full_at.retain(|_, full_at| *full_at > now);
        self.full_at.insert(uid, full_at + self.refill);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_burst_then_the_average() {
        let mut rate = UserBuckets::new(60, 3);
        let start = 100 * SECOND;
        for _ in 0..3 {
            assert_eq!(rate.take(1, start), Ok(()));
        }
        assert_eq!(rate.take(1, start), Err(SECOND), "the fourth waits for one token");
        assert_eq!(rate.take(1, start), Err(SECOND), "a refusal costs nothing");
        assert_eq!(rate.take(1, start + SECOND / 4), Err(SECOND * 3 / 4));
        assert_eq!(rate.take(1, start + SECOND), Ok(()));
        assert_eq!(rate.take(1, start + SECOND), Err(SECOND));
        assert_eq!(rate.take(1, start + 3 * SECOND), Ok(()));
        assert_eq!(rate.take(1, start + 3 * SECOND), Ok(()));
        assert_eq!(rate.take(1, start + 3 * SECOND), Err(SECOND));
    }

    #[test]
    fn the_returned_wait_is_exact() {
        let mut rate = UserBuckets::new(7, 2);
        assert_eq!((rate.take(1, SECOND), rate.take(1, SECOND)), (Ok(()), Ok(())));
        let wait = rate.take(1, SECOND).unwrap_err();
        assert_eq!(wait, Duration::from_secs(60) / 7);
        assert_eq!(rate.take(1, SECOND + wait - Duration::from_nanos(1)), Err(Duration::from_nanos(1)));
        assert_eq!(rate.take(1, SECOND + wait), Ok(()));
    }

    #[test]
    fn a_bucket_never_holds_more_than_the_burst() {
        let mut rate = UserBuckets::new(60, 2);
        assert_eq!(rate.take(1, SECOND), Ok(()));
        let later = 1000 * SECOND;
        assert_eq!((rate.take(1, later), rate.take(1, later)), (Ok(()), Ok(())));
        assert_eq!(rate.take(1, later), Err(SECOND));
    }

    #[test]
    fn each_user_has_its_own_bucket() {
        let mut rate = UserBuckets::new(60, 1);
        assert_eq!(rate.take(1, SECOND), Ok(()));
        assert!(rate.take(1, SECOND).is_err());
        assert_eq!(rate.take(2, SECOND), Ok(()));
        assert!(rate.take(2, SECOND).is_err());
    }

    #[test]
    fn full_buckets_are_forgotten_and_others_kept() {
        let mut rate = UserBuckets::new(60, 5);
        for uid in 0..100 {
            assert_eq!(rate.take(uid, SECOND), Ok(()));
        }
        assert_eq!(rate.full_at.len(), 100);
        assert_eq!(rate.take(7, SECOND), Ok(()), "user 7 misses two tokens now");
        assert_eq!(rate.take(200, 2 * SECOND), Ok(()));
        let mut left: Vec<u32> = rate.full_at.keys().copied().collect();
        left.sort_unstable();
        assert_eq!(left, [7, 200]);
    }

    #[test]
    fn zero_counts_as_one() {
        let mut rate = UserBuckets::new(0, 0);
        assert_eq!(rate.take(1, SECOND), Ok(()));
        assert_eq!(rate.take(1, SECOND), Err(60 * SECOND));
    }

    #[test]
    fn every_kind_of_call_has_its_own_limit() {
        let config = ServerConfig {
            create_burst: 1,
            destroy_burst: 2,
            reap_burst: 3,
            read_burst: 4,
            renewal_burst: 5,
            ..ServerConfig::default()
        };
        let kinds = [CallKind::Create, CallKind::Destroy, CallKind::Reap, CallKind::Read, CallKind::Renewal];
        let limits = RateLimits::new(&config);
        let rates = [
            config.creates_per_minute,
            config.destroys_per_minute,
            config.reaps_per_minute,
            config.reads_per_minute,
            config.renewals_per_minute,
        ];
        for ((kind, burst), per_minute) in kinds.into_iter().zip(1..).zip(rates) {
            for _ in 0..burst {
                assert_eq!(limits.take(kind, 1, false, SECOND), Ok(()), "{kind:?}");
            }
            let wait = Duration::from_secs(60) / per_minute;
            assert_eq!(limits.take(kind, 1, false, SECOND), Err(TooEarly { per_minute, wait }), "{kind:?}");
            assert_eq!(limits.take(kind, 2, false, SECOND), Ok(()), "{kind:?}");
            let operator = limits.take(kind, 1, true, SECOND);
            assert_eq!(operator.is_ok(), kind != CallKind::Create, "{kind:?}");
        }
    }
}
