//! Log lines that a caller can cause: at most one a second, so that nobody fills the disk with them.

use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_secs(1);

/// Remembers when the last line was written and how many were left out since.
#[derive(Debug, Default)]
pub struct LogThrottle {
    last: Option<Instant>,
    left_out: u64,
}

impl LogThrottle {
    /// Whether a line may be written now: how many were left out since the last one.
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
    fn one_line_a_second_with_the_number_of_the_others() {
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
