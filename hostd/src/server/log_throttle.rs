//! Limits log lines that callers can cause to one per second, so that no caller can fill the disk.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_secs(1);

/// The time of the last line and the number of suppressed lines since.
#[derive(Debug, Default)]
pub struct LogThrottle {
    last: Option<Instant>,
    left_out: u64,
}

impl LogThrottle {
    /// If a line may be written now, the number of suppressed lines since the last one.
    pub fn may_log(&mut self, now: Instant) -> Option<u64> {
        if self.is_pausing(now) {
            self.left_out += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.left_out))
    }

    fn is_pausing(&self, now: Instant) -> bool {
        self.last.is_some_and(|last| now.saturating_duration_since(last) < PAUSE)
    }
}

/// One throttle for each user. It outlives the user's connections, so reconnecting does not reset it, and no user can
/// suppress the lines about another.
#[derive(Debug, Default)]
pub struct UserLogThrottles(Mutex<HashMap<u32, LogThrottle>>);

impl UserLogThrottles {
    /// If a line about this user may be written now, the number of suppressed lines since the last one.
    pub fn may_log(&self, uid: u32, now: Instant) -> Option<u64> {
        let mut throttles = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        throttles.retain(|_, throttle| throttle.left_out > 0 || throttle.is_pausing(now));
        throttles.entry(uid).or_default().may_log(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_per_second_with_the_number_of_suppressed_lines() {
        let mut log_throttle = LogThrottle::default();
        let start = Instant::now();
        assert_eq!(log_throttle.may_log(start), Some(0));
        for _ in 0..5 {
            assert_eq!(log_throttle.may_log(start + PAUSE / 2), None);
        }
        assert_eq!(log_throttle.may_log(start + PAUSE), Some(5));
        assert_eq!(log_throttle.may_log(start + PAUSE), None);
        assert_eq!(log_throttle.may_log(start + 3 * PAUSE), Some(1));
        assert_eq!(log_throttle.may_log(start + 4 * PAUSE), Some(0));
    }

    #[test]
    fn users_do_not_suppress_each_other_and_are_forgotten() {
        let throttles = UserLogThrottles::default();
        let start = Instant::now();
        assert_eq!(throttles.may_log(1, start), Some(0));
        assert_eq!(throttles.may_log(1, start), None);
        assert_eq!(throttles.may_log(2, start), Some(0));
        assert_eq!(throttles.may_log(3, start + PAUSE), Some(0));
        assert_eq!(throttles.0.lock().unwrap().len(), 2, "user 2 is forgotten, user 1 has a suppressed line");
        assert_eq!(throttles.may_log(1, start + PAUSE), Some(1));
    }
}
