//! Kernel interfaces and resources that more than one crate of the workspace needs.
//!
//! Each module wraps one interface with plain types and without policy: callers decide what the results mean. On systems
//! other than Linux the crate has only [`user_ids`].

#[cfg(target_os = "linux")]
pub mod mountinfo;
#[cfg(target_os = "linux")]
pub mod netlink;
#[cfg(target_os = "linux")]
pub mod pid_namespace;
#[cfg(target_os = "linux")]
pub mod pidfd;
#[cfg(target_os = "linux")]
pub mod untrusted;
pub mod user_ids;
