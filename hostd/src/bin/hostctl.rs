//! `hostctl`: hostd's operator tool. All of it is in the library, where tests and documentation reach it.

fn main() -> std::process::ExitCode {
    hostd::cli::main()
}
