//! Linux kernel interfaces that more than one crate of the workspace needs.
//!
//! Each module wraps one interface with plain types and without policy: callers decide what the results mean. On other
//! systems the crate is empty.
#![cfg(target_os = "linux")]

pub mod mountinfo;
pub mod netlink;
pub mod pid_namespace;
pub mod pidfd;
