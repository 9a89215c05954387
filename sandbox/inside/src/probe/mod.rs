//! What a program that turned hostile would try, one subject a file.

pub mod battery;
mod execution;
mod files;
mod kernel;
mod limits;
pub mod nested;
mod network;
mod processes;
mod raw;

use crate::findings::Canaries;
use crate::layer::Layer;

/// What a probe says: what it got, or what stopped it.
pub(crate) enum Attempt {
    Open(String),
    Stopped(String),
    NotTried(String),
}

impl Attempt {
    /// From a result: success means that the probe got through.
    pub(crate) fn from<T>(result: std::io::Result<T>, got: &str) -> Attempt {
        match result {
            Ok(_) => Attempt::Open(got.to_owned()),
            Err(error) => Attempt::Stopped(error.to_string()),
        }
    }

    /// From a question.
    pub(crate) fn open_if(open: bool, got: &str, stopped: &str) -> Attempt {
        if open {
            Attempt::Open(got.to_owned())
        } else {
            Attempt::Stopped(stopped.to_owned())
        }
    }
}

/// One probe.
pub(crate) struct Probe {
    pub(crate) name: &'static str,
    pub(crate) attempt: &'static str,
    pub(crate) layers: &'static [Layer],
    pub(crate) run: fn(&Canaries) -> Attempt,
}
