//! A FreeBSD host that does not exist: fake `zfs`, `jail`, `ifconfig`, `pfctl` … on disk, all showing and changing one
//! world, so that the unmodified daemon can be driven through everything that a real host does to it.
//!
//! One executable is installed under the name of every tool ([`Machine::install`]). Each run of it takes the world (a JSON
//! file beside the tools, under a lock), does what the real tool would do, and says what the real tool would say: the
//! texts, the exit codes and the lies are those of the recordings in `transcripts/`, and `tests/self_check.rs` replays
//! the recordings against the executables so that the fake cannot drift from them.
//!
//! What the recordings do not show follows the tools' sources. What nobody needed is not there: a fake tool that is asked
//! for something it does not know says so and notes it in [`World::violations`], which every test looks at in the end.

mod calls;
mod fake;
mod files;
mod laws;
mod machine;
mod options;
mod tools;
mod world;

pub use calls::{Run, depth};
pub use fake::{Fake, Said, TOOLS};
pub use machine::Machine;
pub use world::*;
