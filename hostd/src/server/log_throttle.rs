//! Limits log lines that callers can cause to one per second, so that no caller can fill the disk.

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
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < PAUSE) {
            self.left_out += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.left_out))
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
}
