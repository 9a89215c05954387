//! Empties all capability sets.

use super::Failure;
use crate::layer::Layer;
use caps::{CapSet, Capability};
use std::collections::HashSet;

const SETS: [CapSet; 5] =
    [CapSet::Bounding, CapSet::Ambient, CapSet::Effective, CapSet::Inheritable, CapSet::Permitted];

/// Empties every set and verifies it. The bounding set comes first because dropping it (`PR_CAPBSET_DROP`) needs a
/// capability.
pub fn drop_all() -> Result<(), Failure> {
    for set in SETS {
        caps::clear(None, set)
            .map_err(|e| Failure::of(Layer::Capabilities, format!("empty the {set:?} set: {e}")))?;
    }
    verify_none()
}

fn verify_none() -> Result<(), Failure> {
    for set in SETS {
        let left = read(set)?;
        if !left.is_empty() {
            let message = format!("capabilities left in the {set:?} set: {left:?}");
            return Err(Failure::of(Layer::Capabilities, message));
        }
    }
    Ok(())
}

fn read(set: CapSet) -> Result<HashSet<Capability>, Failure> {
    caps::read(None, set).map_err(|e| Failure::of(Layer::Capabilities, format!("read the {set:?} set: {e}")))
}
