//! Sessions, actions and recordings above a real hostd with the fake host; the browsers are stand-ins.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod browser;
mod fail_closed;
mod kill;
mod life;
mod limits;
mod recordings;
mod restart;
mod rig;

#[path = "../support/mod.rs"]
mod support;
