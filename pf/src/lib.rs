//! The egress policy: which addresses a clone may reach.
//!
//! One [`Policy`] is rendered to two equivalent rulesets, [`nftables`] for Linux and [`pf_conf`] for FreeBSD. Both block
//! the clones' networks. Membership of one set *grants* a clone access to the public Internet and to one resolver, so
//! losing the set cuts the clones off and never opens the LAN. The ranges in [`deny`] stay blocked for members too;
//! egress proxies use the same list.
//!
//! Rules that are not loaded block nothing. The crate therefore also verifies that the loaded rules are the rendered
//! ones and reports changes. [`linux::Firewall`] uses netlink. [`pfctl`] builds commands and parses their output; the
//! caller runs them. It is portable, so its tests run on every system.

pub mod clone_rules;
pub mod deny;
pub mod ipfw;
#[cfg(target_os = "linux")]
pub mod linux;
pub mod nftables;
pub mod pf_conf;
pub mod pfctl;
mod policy;

pub use policy::{CLOSED_SECONDS, ConnectionLimits, Policy, PolicyError, PolicySpec, Slot};
