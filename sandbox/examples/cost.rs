//! Measures the cost of the sandbox: time from `spawn` to the execution of the program, and memory of
//! everything but the program. `cargo run --release -p sandbox --example cost -- 100`
//!
//! Output: one `name value unit` per line, stable.

#[cfg(target_os = "linux")]
#[path = "linux/cost.rs"]
mod example;

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    example::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {}
