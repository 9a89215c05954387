//! Rate limit of creates: a token bucket for each user id.
//!
//! The bucket is stored as the time at which it will be full again (generic cell rate algorithm), so no timer refills it
//! and a full bucket needs no memory.

use std::collections::HashMap;
use std::time::Duration;

/// The buckets of all users.
#[derive(Debug)]
pub struct CreateRate {
    /// The time to refill one token.
    refill: Duration,
    /// The time to refill all but one token.
    depth: Duration,
    /// When the user's bucket will be full.
    full_at: HashMap<u32, Duration>,
}

impl CreateRate {
    /// Full buckets with `burst` tokens and a refill of `per_minute` tokens per minute. Both are at least 1.
    pub fn new(per_minute: u32, burst: u32) -> Self {
        let refill = Duration::from_secs(60) / per_minute.max(1);
        Self { refill, depth: refill * (burst.max(1) - 1), full_at: HashMap::new() }
    }

    /// Take a token from a user's bucket, or return the time until the next one. `now` is a monotonic clock.
    pub fn take(&mut self, uid: u32, now: Duration) -> Result<(), Duration> {
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
        let mut rate = CreateRate::new(60, 3);
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
        let mut rate = CreateRate::new(7, 2);
        assert_eq!((rate.take(1, SECOND), rate.take(1, SECOND)), (Ok(()), Ok(())));
        let wait = rate.take(1, SECOND).unwrap_err();
        assert_eq!(wait, Duration::from_secs(60) / 7);
        assert_eq!(rate.take(1, SECOND + wait - Duration::from_nanos(1)), Err(Duration::from_nanos(1)));
        assert_eq!(rate.take(1, SECOND + wait), Ok(()));
    }

    #[test]
    fn a_bucket_never_holds_more_than_the_burst() {
        let mut rate = CreateRate::new(60, 2);
        assert_eq!(rate.take(1, SECOND), Ok(()));
        let later = 1000 * SECOND;
        assert_eq!((rate.take(1, later), rate.take(1, later)), (Ok(()), Ok(())));
        assert_eq!(rate.take(1, later), Err(SECOND));
    }

    #[test]
    fn each_user_has_its_own_bucket() {
        let mut rate = CreateRate::new(60, 1);
        assert_eq!(rate.take(1, SECOND), Ok(()));
        assert!(rate.take(1, SECOND).is_err());
        assert_eq!(rate.take(2, SECOND), Ok(()));
        assert!(rate.take(2, SECOND).is_err());
    }

    #[test]
    fn full_buckets_are_forgotten_and_others_kept() {
        let mut rate = CreateRate::new(60, 5);
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
        let mut rate = CreateRate::new(0, 0);
        assert_eq!(rate.take(1, SECOND), Ok(()));
        assert_eq!(rate.take(1, SECOND), Err(60 * SECOND));
    }
}
