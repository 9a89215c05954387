//! What a look through a clone's browser shows. Where the clone has browserd, its own client looks (see `cli::visit`).

use std::time::Duration;

/// What was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The page's title.
    pub title: String,
    /// The picture, as PNG.
    pub picture: Vec<u8>,
}

/// For systems whose clones always have browserd: there is no other way to their browsers.
pub fn load(endpoint: &str, _: &str, _: Duration) -> Result<Seen, String> {
    Err(unknown(endpoint))
}

pub(super) fn unknown(endpoint: &str) -> String {
    format!("{endpoint} is no endpoint that this program knows")
}
