//! The program `browserctl`. The library holds all of it, so that tests and the documentation can use it.

fn main() -> std::process::ExitCode {
    browserctl::main()
}
