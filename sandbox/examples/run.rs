//! Runs a system program in a sandbox: `cargo run -p sandbox --example run -- /usr/bin/id`.
//! With `--explain` as first argument, prints the plan instead.

#[cfg(target_os = "linux")]
#[path = "linux/run.rs"]
mod example;

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    example::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {}
