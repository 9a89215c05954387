//! What runs *inside* a sandbox, and the words it shares with the outside.
//!
//! This is a package of its own because its programs are built apart from everything else: small,
//! static, optimised for size, and embedded in the `sandbox` crate, which hands them to bubblewrap
//! through a sealed memory file. So no file has to be installed, found or trusted at run time.

pub mod findings;
pub mod layer;
pub mod protocol;

/// The stages themselves; Linux only.
#[cfg(target_os = "linux")]
pub mod linux;

/// The escape battery and what the preflight asks inside; Linux only.
#[cfg(target_os = "linux")]
pub mod probe;
