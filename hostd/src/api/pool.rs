//! The warm pool as callers and operators see it.

use super::ids::CloneName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How far a clone is made ahead of time. Who creates gets the same clone either way, only sooner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Flavor {
    /// With its browser up, on a blank page: taken first.
    Ready,
    /// Complete but for its browser, which is started when it is taken: slower, and next to no memory.
    Basic,
}

impl Flavor {
    /// Every flavour, in the order they are taken.
    pub const ALL: [Flavor; 2] = [Flavor::Ready, Flavor::Basic];

    /// The word on the wire and in the metrics.
    pub fn word(self) -> &'static str {
        match self {
            Flavor::Ready => "ready",
            Flavor::Basic => "basic",
        }
    }
}

/// The warm pool, in the answer of `host-status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PoolStatus {
    /// How many members of each flavour are wanted.
    pub size: u64,
    /// The flavours that are kept.
    pub flavors: Vec<Flavor>,
    /// The members that wait to be taken, by name.
    pub members: Vec<PoolMember>,
    /// A member is being made now.
    pub refilling: bool,
    /// Creates that were answered from the pool since the daemon's start.
    pub hits: u64,
    /// Creates that found no member at all.
    pub misses_empty: u64,
    /// Creates that found members, but none of their snapshot, limits or name.
    pub misses_unfit: u64,
    /// Members that were taken away unused: too old, template changed, broken, in the way, or at the daemon's stop.
    pub drained: u64,
    /// How long making the last member took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_refill_seconds: Option<f64>,
    /// Why the pool cannot be filled, if it cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// One member of the warm pool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PoolMember {
    /// Its name, which it keeps when it is taken.
    pub name: CloneName,
    /// How far it is made.
    pub flavor: Flavor,
    /// How old it is.
    pub age_seconds: u64,
    /// How long until it is too old to be taken.
    pub seconds_left: u64,
}
