//! Configuration: one value, checked whole before the daemon does anything.
//!
//! The types here are the only description: the commented default file, the environment variables
//! (`HOSTD_SECTION_KEY`), the `--set section.key=value` flag and the unknown-key hints all come from them.

mod types;

pub use types::*;
