//! What a clone costs, stage by stage, beside the floor: the same kernel work done bare, measured in the same run.
//!
//! `scripts/bench clone` runs it, in a private machine (namespaces of its own), on the real kernel with the real browser.
//! Rounds of hostd and of the floor take turns, so what else the machine does hits both. Medians count.
#![allow(clippy::unwrap_used)]

#[cfg(target_os = "linux")]
#[path = "../../tests/daemon/mod.rs"]
mod daemon;
#[cfg(target_os = "linux")]
mod floor;
#[cfg(target_os = "linux")]
#[path = "../../tests/lab/mod.rs"]
mod lab;
#[cfg(target_os = "linux")]
#[path = "../../tests/life/mod.rs"]
mod life;
#[cfg(target_os = "linux")]
mod load;
#[cfg(target_os = "linux")]
mod run;
#[cfg(target_os = "linux")]
mod table;

fn main() {
    #[cfg(target_os = "linux")]
    run::main();
    #[cfg(not(target_os = "linux"))]
    eprintln!("these are clones of the Linux host: nothing to measure here");
}
