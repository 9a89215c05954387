//! The life of a clone: create, the one teardown, reap, force-unmount, repair.
//!
//! Intent is recorded before the first effect, every effect is verified by an inspection, and whatever is not finished
//! after a crash is rolled back by the same teardown that a destroy runs.
//!
//! | part | what it owns |
//! |---|---|
//! | [`entry`] | the operations as the server calls them |
//! | [`calls`] | calls under way, their audit lines, alarms |
//! | [`registry`] | the records on disk and in memory; which slot is next |
//! | [`slot_task`] | one task per busy slot: its queue, joins, the work in flight |
//! | [`reaping`] | the timer's removals, in parallel and bounded |
//! | [`planner`] | pure: from records and an inspection to decisions |
//! | [`service_watch`] | whether the services of ready clones answer |
//! | [`warm_pool`] | when members are made and drained |

mod bind;
mod build;
mod calls;
mod claim_slot;
mod create;
mod destroy;
mod entry;
mod errors;
mod host_calls;
mod ownership;
mod parts;
pub mod planner;
mod progress;
mod reap;
mod reaping;
mod registry;
mod removal_errors;
mod repair;
mod service_watch;
mod slot_task;
mod step;
mod teardown;
mod view;
mod warm_pool;
mod warm_pool_target;

pub use entry::{Caller, Lifecycle, LifecycleStatus, OpenError, Setup};
pub use progress::ProgressSink;
pub use step::Step;
