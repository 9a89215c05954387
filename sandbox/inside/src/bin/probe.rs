//! The program that is run in the place of the confined one, to find out what that could do.
//!
//! `nothing`, `uid` and `nested-sandbox` are small questions, `battery` is the escape battery.

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    use sandbox_inside::probe;

    // A setuid copy of this program is one of the canaries: as such it tells who it is, and no more.
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
            eprintln!("this program is a part of the sandbox library and is started by it only");
            std::process::ExitCode::from(2)
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn main() {}
