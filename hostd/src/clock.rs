//! Time as the lifecycle needs it: this boot and the time since it, with the wall clock for show only.
//!
//! A deadline is a point on the monotonic clock of one boot. A clock that an administrator or NTP
//! sets can neither empty a host nor let a clone live for ever.

use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime};

/// A moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moment {
    /// The boot it belongs to.
    pub boot: String,
    /// Time since that boot.
    pub mono: Duration,
    /// The wall clock, for show.
    pub wall: SystemTime,
}

impl Moment {
    /// The stamp of this moment, as records keep it.
    pub fn stamp(&self) -> Stamp {
        self.stamp_in(Duration::ZERO)
    }

    /// The stamp of a moment that lies this far ahead.
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

/// A moment as records keep it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stamp {
    /// The boot it belongs to.
    pub boot: String,
    /// Milliseconds since that boot.
    pub mono_ms: u64,
    /// Milliseconds since 1970, for show.
    pub wall_ms: u64,
}

impl Stamp {
    /// The wall clock's word for people (RFC 3339).
    pub fn rfc3339(&self) -> String {
        let wall = SystemTime::UNIX_EPOCH + Duration::from_millis(self.wall_ms.min(253_402_300_799_000));
        humantime::format_rfc3339_millis(wall).to_string()
    }
}

/// Where moments come from.
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
    /// Reads the boot's name once; it cannot change while we run.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { boot: crate::platform::boot_id()? })
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        Moment { boot: self.boot.clone(), mono: crate::platform::monotonic(), wall: SystemTime::now() }
    }
}
