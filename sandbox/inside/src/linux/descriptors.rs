//! Gives the program its descriptors and closes all others.

use super::{Failure, sys};
use crate::layer::Layer;
use crate::protocol::Descriptors;

/// Moves the program's descriptors to their numbers with `dup2`. With `close_others`, closes all
/// others with `close_range`, except `keep`: stage 2 still needs those, and they are close-on-exec.
pub fn move_and_close(orders: &Descriptors, keep: &[i32]) -> Result<(), Failure> {
    let failed = |what: &str, e| Failure::of(Layer::Descriptors, format!("{what}: {e}"));
    // Sources start at FIRST_DESCRIPTOR and the launcher only accepts targets below it, so no dup2
    // overwrites a source.
    for (from, to) in &orders.moves {
        sys::copy_to(*from, *to).map_err(|e| failed("dup2", e))?;
    }
    if !orders.close_others {
        return Ok(());
    }
    let mut kept: Vec<i32> = orders.moves.iter().map(|(_, to)| *to).collect();
    kept.extend(keep);
    kept.extend([0, 1, 2]);
    kept.sort_unstable();
    kept.dedup();
    let mut next = 3;
    for number in kept.into_iter().filter(|n| *n >= 3) {
        sys::close_range(next, number - 1, false).map_err(|e| failed("close_range", e))?;
        next = number + 1;
    }
    sys::close_range(next, i32::MAX, false).map_err(|e| failed("close_range", e))
}
