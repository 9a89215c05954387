//! Time for the lifecycle: the boot id and the time since boot. The wall clock is informational.
//!
//! A deadline is a point on the monotonic clock of one boot. Setting the wall clock (by hand or NTP) neither expires a
//! clone nor extends its life.

use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime};

/// A moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moment {
    /// The boot it belongs to.
    pub boot: String,
    /// Time since that boot.
    pub mono: Duration,
    /// The wall clock, informational.
    pub wall: SystemTime,
}

impl Moment {
    /// The stamp of this moment, for records.
    pub fn stamp(&self) -> Stamp {
        self.stamp_in(Duration::ZERO)
    }

    /// The stamp of a moment this far in the future.
    pub fn stamp_in(&self, ahead: Duration) -> Stamp {
        let millis = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        let wall = self.wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default() + ahead;
        Stamp { boot: self.boot.clone(), mono_ms: millis(self.mono + ahead), wall_ms: millis(wall) }
    }

    /// Time left until a stamp; zero when it has passed. `None`: it belongs to another boot.
    pub fn until(&self, stamp: &Stamp) -> Option<Duration> {
        (stamp.boot == self.boot).then(|| Duration::from_millis(stamp.mono_ms).saturating_sub(self.mono))
    }

    /// Time since a stamp. `None`: it belongs to another boot.
    pub fn since(&self, stamp: &Stamp) -> Option<Duration> {
        (stamp.boot == self.boot).then(|| self.mono.saturating_sub(Duration::from_millis(stamp.mono_ms)))
    }
}

/// A moment, as stored in records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stamp {
    /// The boot it belongs to.
    pub boot: String,
    /// Milliseconds since that boot.
    pub mono_ms: u64,
    /// Milliseconds since 1970, informational.
    pub wall_ms: u64,
}

impl Stamp {
    /// The wall clock as RFC 3339.
    pub fn rfc3339(&self) -> String {
        let wall = SystemTime::UNIX_EPOCH + Duration::from_millis(self.wall_ms.min(253_402_300_799_000));
        humantime::format_rfc3339_millis(wall).to_string()
    }
}

/// A source of moments.
pub trait Clock: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Moment;
}

/// The system's clocks.
#[derive(Debug)]
pub struct SystemClock {
    boot: String,
}

impl SystemClock {
    /// Reads the boot id once; it is constant while the system runs.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { boot: crate::platform::boot_id()? })
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        Moment { boot: self.boot.clone(), mono: crate::platform::monotonic(), wall: SystemTime::now() }
    }
}
