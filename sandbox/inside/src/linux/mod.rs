//! The steps of the two stages.

pub mod bounds;
pub mod capabilities;
pub mod channel;
pub mod check;
pub mod descriptors;
pub mod dial;
pub mod landlock;
pub mod seccomp;
pub mod stage1;
pub mod stage2;
pub mod sys;
pub mod user_namespace;
pub mod verify;

use crate::layer::Layer;
use std::fmt;

/// Why a stage failed. It is sent to the launcher as text, so it carries a message and no source.
#[derive(Debug)]
pub struct Failure {
    /// The layer that could not be enforced, if one is the cause.
    pub layer: Option<Layer>,
    /// The failed step and the kernel's error.
    pub message: String,
}

impl Failure {
    /// A failure of `layer`.
    pub fn of(layer: Layer, message: impl fmt::Display) -> Self {
        Failure { layer: Some(layer), message: message.to_string() }
    }

    /// A failure that belongs to no layer.
    pub fn other(message: impl fmt::Display) -> Self {
        Failure { layer: None, message: message.to_string() }
    }
}
