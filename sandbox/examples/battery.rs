//! Runs the escape battery under an ordinary policy and prints the results.
//! `cargo run -p sandbox --example battery -- [LAYER TO SWITCH OFF]…`

#[cfg(target_os = "linux")]
#[path = "linux/battery.rs"]
mod example;

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    example::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {}
