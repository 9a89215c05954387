//! Egress as data: which clone may reach what.
//!
//! One [`Policy`] is rendered to two rulesets, [`nftables`] for Linux and [`pf_conf`] for FreeBSD, that mean the same:
//! the pool's networks are blocked, and membership of one set *grants* a clone the public Internet and one resolver.
//! Losing the set therefore cuts the clones off and never opens the LAN. What stays blocked for members too is one
//! list, [`deny`], which egress proxies use as well.
//!
//! A ruleset that is gone cannot block anything. So the crate also proves that the loaded rules are the rendered ones
//! and tells at once when they change: [`linux::Firewall`] with the kernel's own words over netlink, [`pfctl`] by
//! building the commands and reading their output (portable, so that it is tested everywhere; running them is the
//! caller's affair).

pub mod deny;
#[cfg(target_os = "linux")]
pub mod linux;
pub mod nftables;
pub mod pf_conf;
pub mod pfctl;
mod policy;

pub use policy::{Policy, PolicyError, PolicySpec, Slot};
