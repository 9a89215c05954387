//! Runs in place of the confined program and reports what that program could do.
//!
//! `nothing`, `uid` and `nested-sandbox` are single checks; `battery` is the escape battery.

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    use sandbox_inside::probe;

    // A setuid copy of this program is one of the canaries. That copy only reports its uid.
    let changed_user = nix::unistd::getuid() != nix::unistd::geteuid();
    match std::env::args().nth(1).as_deref() {
        Some(word) if changed_user && word != "uid" => std::process::ExitCode::from(2),
        Some("nothing") => std::process::ExitCode::SUCCESS,
        Some("uid") => {
            println!("{}", nix::unistd::geteuid());
            std::process::ExitCode::SUCCESS
        }
        Some("nested-sandbox") => probe::nested::run(),
        Some("battery") => probe::battery::run(),
        _ => {
            eprintln!("this program is part of the sandbox library; only the library starts it");
            std::process::ExitCode::from(2)
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn main() {}
