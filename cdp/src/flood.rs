//! Limits on how fast the output of a hostile program is read.
//!
//! A program that writes without end costs its reader processor time even if every byte is dropped. A reader that pauses
//! leaves the pipe full, and then the program waits and not the reader.

use std::time::{Duration, Instant};

/// What a browser may send in the long run. A screenshot is a few megabytes, so no ordinary client reaches it.
const BYTES_PER_SECOND: u64 = 128 << 20;
/// What a browser may send at once: the largest message that a reader accepts.
const BURST: u64 = 256 << 20;
/// What every message costs in addition to its size.
const MESSAGE: u64 = 1 << 10;
/// What a message costs that no browser sends: an empty one, or one that is not JSON.
const USELESS_MESSAGE: u64 = 64 << 10;

/// A token bucket: how long to wait before the next read, so that a stream stays below a rate.
#[derive(Debug)]
pub struct Throttle {
    per_second: u64,
    burst: u64,
    /// What may be read now. Below zero after a read that was larger than the rest.
    tokens: i128,
    refilled: Instant,
}

impl Throttle {
    /// A full bucket of `burst` bytes, refilled with `per_second` bytes.
    pub fn new(per_second: u64, burst: u64, now: Instant) -> Self {
        Throttle { per_second: per_second.max(1), burst, tokens: i128::from(burst), refilled: now }
    }

    /// Records what was read. The result is how long to wait before the next read; zero while the rate is kept.
    pub fn spend(&mut self, bytes: u64, now: Instant) -> Duration {
        let gained = now.saturating_duration_since(self.refilled).as_nanos() * u128::from(self.per_second);
        let gained = i128::try_from(gained / 1_000_000_000).unwrap_or(i128::MAX);
        if gained > 0 {
            self.tokens = self.tokens.saturating_add(gained).min(self.burst.into());
            self.refilled = now;
        }
        // A debt of one second is the largest: a reader that pauses for longer notices the end of its pipe too late.
        let debt = i128::from(self.per_second);
        self.tokens = (self.tokens - i128::from(bytes)).max(-debt);
        let missing = u128::try_from(-self.tokens).unwrap_or(0);
        let nanoseconds = missing.saturating_mul(1_000_000_000) / u128::from(self.per_second);
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }
}

/// What a reader of a debugging pipe does before its next read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    /// How long it waits.
    pub time: Duration,
    /// Whether this is the first pause of this pipe. Only the first one is logged: the browser decides how many follow.
    pub is_first: bool,
}

/// Notices a browser that floods its debugging pipe.
#[derive(Debug)]
pub struct FloodGuard {
    throttle: Throttle,
    cost: u64,
    has_paused: bool,
}

impl FloodGuard {
    /// A guard for one pipe.
    pub fn new(now: Instant) -> Self {
        FloodGuard { throttle: Throttle::new(BYTES_PER_SECOND, BURST, now), cost: 0, has_paused: false }
    }

    /// So many bytes were read. They are counted before they are a whole message, because a message may never end.
    pub fn read(&mut self, bytes: usize) {
        self.cost += bytes as u64;
    }

    /// A message was among them.
    pub fn message(&mut self, payload: &[u8]) {
        self.cost += if payload.is_empty() { USELESS_MESSAGE } else { MESSAGE };
    }

    /// A message was among them that no browser sends.
    pub fn useless_message(&mut self) {
        self.cost += USELESS_MESSAGE;
    }

    /// Whole messages were among them, each with its terminator.
    pub fn batch(&mut self, framed: &[u8]) {
        let mut start = 0;
        for end in memchr::memchr_iter(crate::TERMINATOR, framed) {
            self.message(&framed[start..end]);
            start = end + 1;
        }
    }

    /// Asked after each read. `None`: read on.
    pub fn pause(&mut self, now: Instant) -> Option<Pause> {
        let time = self.throttle.spend(std::mem::take(&mut self.cost), now);
        // Shorter pauses would cost more than they save.
        if time < Duration::from_millis(1) {
            return None;
        }
        let is_first = !std::mem::replace(&mut self.has_paused, true);
        Some(Pause { time, is_first })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long a reader pauses in all for this stream, and how often a pause was the first.
    fn pauses(chunks: impl Iterator<Item = Vec<u8>>) -> (Duration, usize) {
        let mut now = Instant::now();
        let mut guard = FloodGuard::new(now);
        let (mut paused, mut firsts) = (Duration::ZERO, 0);
        for chunk in chunks {
            guard.read(chunk.len());
            guard.batch(&chunk);
            if let Some(pause) = guard.pause(now) {
                now += pause.time;
                paused += pause.time;
                firsts += usize::from(pause.is_first);
            }
        }
        (paused, firsts)
    }

    #[test]
    fn ordinary_messages_are_never_delayed() {
        let screenshot = crate::encode(vec![b'x'; 8 << 20]);
        assert_eq!(pauses((0..20).map(|_| screenshot.clone())), (Duration::ZERO, 0));
        let event = crate::encode(vec![b'x'; 400]);
        assert_eq!(pauses((0..100_000).map(|_| event.clone())), (Duration::ZERO, 0));
        assert_eq!(pauses(std::iter::once(crate::encode(vec![b'x'; 250 << 20]))), (Duration::ZERO, 0));
    }

    #[test]
    fn floods_are_delayed_and_reported_once() {
        let empty_messages = || (0..116).map(|_| vec![0; 64 << 10]);
        let one_endless_message = || (0..6400).map(|_| vec![b'x'; 64 << 10]);
        let huge_messages = || (0..16).map(|_| crate::encode(vec![b'x'; 32 << 20]));
        for (paused, firsts) in
            [pauses(empty_messages()), pauses(one_endless_message()), pauses(huge_messages())]
        {
            assert!(paused >= Duration::from_secs(1), "{paused:?}");
            assert_eq!(firsts, 1);
        }
        assert!(pauses(empty_messages()).0 >= Duration::from_secs(100), "a second for each read");
    }

    #[test]
    fn a_bucket_refills_to_its_burst_and_no_further() {
        let start = Instant::now();
        let mut throttle = Throttle::new(100, 1000, start);
        assert_eq!(throttle.spend(1000, start), Duration::ZERO);
        assert_eq!(throttle.spend(50, start), Duration::from_millis(500));
        let later = start + Duration::from_secs(3600);
        assert_eq!(throttle.spend(1000, later), Duration::ZERO);
        assert_eq!(throttle.spend(100, later), Duration::from_secs(1));
        assert_eq!(throttle.spend(u64::MAX, later), Duration::from_secs(1), "no pause is longer");
        // Many small reads lose nothing of what is refilled.
        let mut now = later + Duration::from_secs(3600);
        throttle.spend(1000, now);
        for _ in 0..1000 {
            now += Duration::from_millis(1);
            throttle.spend(0, now);
        }
        assert_eq!(throttle.spend(100, now), Duration::ZERO);
    }
}
