//! What a compromised program would try.

pub mod battery;
mod execution;
mod files;
mod kernel;
mod limits;
pub mod nested;
mod network;
mod processes;
mod raw;
mod resources;

use crate::findings::Canaries;
use crate::layer::Layer;

/// The result of a probe: what it reached, or what stopped it.
pub(crate) enum Attempt {
    Open(String),
    Stopped(String),
    NotTried(String),
}

impl Attempt {
    /// Success means that the probe got through.
    pub(crate) fn from<T>(result: std::io::Result<T>, got: &str) -> Attempt {
        match result {
            Ok(_) => Attempt::Open(got.to_owned()),
            Err(error) => Attempt::Stopped(error.to_string()),
        }
    }

    /// `open` means that the probe got through.
    pub(crate) fn open_if(open: bool, got: &str, stopped: &str) -> Attempt {
        if open { Attempt::Open(got.to_owned()) } else { Attempt::Stopped(stopped.to_owned()) }
    }
}

/// One escape attempt and the layers that must stop it.
pub(crate) struct Probe {
    pub(crate) name: &'static str,
    pub(crate) attempt: &'static str,
    pub(crate) layers: &'static [Layer],
    pub(crate) run: fn(&Canaries) -> Attempt,
}
