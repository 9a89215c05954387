//! A plan in plain words.

use crate::Plan;

impl Plan {
    /// What the program will see and may do, and the exact bubblewrap arguments.
    pub fn explain(&self) -> String {
        String::new()
    }
}
