//! The two stages of a launch in one small static program.
//!
//! Users never start it: the launcher starts it as `guard`, bubblewrap as `confine`.

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    use sandbox_inside::linux::{check, dial, stage1, stage2};

    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["guard"] => stage1::run(stage1::Inherited::Close),
        ["guard", "pass-on"] => stage1::run(stage1::Inherited::PassOn),
        ["dial"] => dial::run(),
        ["check", ref question @ ..] => check::run(question),
        ["confine", instructions] => stage2::run(instructions),
        _ => {
            eprintln!("this program is part of the sandbox library; only the library starts it");
            std::process::ExitCode::from(2)
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn main() {}
