//! Time as the store and the surfaces use it: milliseconds since 1970, RFC 3339 in answers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970. Databases store it as a 64-bit integer.
pub type Millis = i64;

/// The present time.
pub fn now() -> Millis {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as Millis)
}

/// A duration in milliseconds.
pub fn millis(duration: Duration) -> Millis {
    Millis::try_from(duration.as_millis()).unwrap_or(Millis::MAX)
}

/// RFC 3339 with milliseconds, in UTC.
pub fn rfc3339(at: Millis) -> String {
    let since = Duration::from_millis(u64::try_from(at).unwrap_or(0));
    humantime::format_rfc3339_millis(UNIX_EPOCH + since).to_string()
}
