//! Which descriptors the program gets.

use super::{Failure, sys};
use crate::layer::Layer;
use crate::protocol::Descriptors;

/// Puts the program's descriptors at their numbers. With `close_others`, closes all the rest except
/// `keep`, which are this program's own and close-on-exec.
pub fn place(orders: &Descriptors, keep: &[i32]) -> Result<(), Failure> {
    let failed = |what: &str, e| Failure::of(Layer::Descriptors, format!("{what}: {e}"));
    // The sources have high numbers (agreed with stage 1) and the targets low ones; a source is
    // never overwritten before it was copied because the launcher refuses such numbers.
    for (from, to) in &orders.moves {
        sys::copy_to(*from, *to).map_err(|e| failed("place a descriptor", e))?;
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
