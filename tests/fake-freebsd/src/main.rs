//! The multi-call executable: which tool it is, its own name tells.

fn main() -> std::process::ExitCode {
    fake_freebsd::Fake::main()
}
