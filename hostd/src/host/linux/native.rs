//! What this system's host offers to the rest of hostd.

pub use super::linux::helper;

/// The templates of this host.
pub mod templates {
    pub use super::super::linux::templates::{create, list, remove};
}
