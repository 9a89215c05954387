//! The program `hostctl`. The library holds all of it, so that tests and the documentation can use it.

fn main() -> std::process::ExitCode {
    hostctl::main()
}
