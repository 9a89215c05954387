//! The programs that run *inside* a sandbox, and the types they share with the outside.
//!
//! This is a separate package because its programs have their own build settings: static and
//! optimised for size. The `sandbox` crate embeds them and passes them to bubblewrap in a sealed
//! memory file, so no file has to be installed, found or trusted at run time.

pub mod findings;
pub mod layer;
pub mod protocol;

/// The two stages; Linux only.
#[cfg(target_os = "linux")]
pub mod linux;

/// The escape battery and the checks that the preflight runs inside; Linux only.
#[cfg(target_os = "linux")]
pub mod probe;
