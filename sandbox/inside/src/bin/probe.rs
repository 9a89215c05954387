//! The escape battery.
fn main() {}
