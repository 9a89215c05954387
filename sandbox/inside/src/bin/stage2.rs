//! Stage 2: runs inside the sandbox, closes the last doors, becomes the program.
fn main() {}
