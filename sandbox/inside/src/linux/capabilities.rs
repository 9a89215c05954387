//! Empties all capability sets.

use super::Failure;
use crate::layer::Layer;
use caps::{CapSet, Capability};
use std::collections::HashSet;

const SETS: [CapSet; 5] =
    [CapSet::Bounding, CapSet::Ambient, CapSet::Effective, CapSet::Inheritable, CapSet::Permitted];

/// Drops what bubblewrap left in the bounding set (`PR_CAPBSET_DROP`).
pub fn drop_bounding_set() -> Result<(), Failure> {
    for capability in read(CapSet::Bounding)? {
        caps::drop(None, CapSet::Bounding, capability)
            .map_err(|e| Failure::of(Layer::Capabilities, format!("bounding set: {e}")))?;
    }
    Ok(())
}

/// Fails unless every set is empty.
pub fn verify_none() -> Result<(), Failure> {
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
