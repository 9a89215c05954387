//! What the warm pool did since the daemon's start, for status and metrics.

/// How a create fared with the warm pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Draw {
    /// It got a member.
    Hit,
    /// There was no member.
    Empty,
    /// There were members, but none of its snapshot, limits or name.
    Unfit,
}

impl Draw {
    /// The word in the metrics.
    pub(super) fn word(self) -> &'static str {
        match self {
            Draw::Hit => "hit",
            Draw::Empty => "empty",
            Draw::Unfit => "unfit",
        }
    }
}

/// The warm pool's counters.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) hits: u64,
    pub(super) misses_empty: u64,
    pub(super) misses_unfit: u64,
    pub(super) drained: u64,
    pub(super) refilling: bool,
    pub(super) last_refill_seconds: Option<f64>,
}

impl Tally {
    pub(super) fn count(&mut self, draw: Draw) {
        match draw {
            Draw::Hit => self.hits += 1,
            Draw::Empty => self.misses_empty += 1,
            Draw::Unfit => self.misses_unfit += 1,
        }
    }
}
