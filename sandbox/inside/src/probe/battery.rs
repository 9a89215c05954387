//! Runs every probe, each in a process of its own, and writes one finding a line.
//!
//! A process of its own because a probe may be killed (that is one way of being stopped), may change
//! namespaces, limits or descriptors, and none of that may touch the next one.

use super::{Attempt, Probe, execution, files, kernel, limits, network, processes};
use crate::findings::{Canaries, Finding, Outcome};
use crate::linux::sys;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use std::io::{Read, Write};
use std::process::ExitCode;

/// The canaries come as JSON in the second argument; the findings go to standard output.
pub fn run() -> ExitCode {
    let Some(canaries) = std::env::args()
        .nth(2)
        .and_then(|text| serde_json::from_str::<Canaries>(&text).ok())
    else {
        eprintln!("no canaries");
        return ExitCode::from(2);
    };
    for probe in all() {
        let finding = Finding {
            name: probe.name.to_owned(),
            attempt: probe.attempt.to_owned(),
            layers: probe.layers.to_vec(),
            outcome: apart(probe, &canaries),
        };
        match serde_json::to_string(&finding) {
            Ok(line) => println!("{line}"),
            Err(_) => return ExitCode::from(3),
        }
    }
    ExitCode::SUCCESS
}

fn all() -> impl Iterator<Item = &'static Probe> {
    [
        files::PROBES,
        processes::PROBES,
        network::PROBES,
        kernel::PROBES,
        execution::PROBES,
        limits::PROBES,
    ]
    .into_iter()
    .flatten()
}

/// Runs one probe in a child.
fn apart(probe: &Probe, canaries: &Canaries) -> Outcome {
    let Ok((mut reader, mut writer)) = std::io::pipe() else {
        return Outcome::NotTried("no pipe".to_owned());
    };
    let child = match sys::fork() {
        Ok(Some(child)) => child,
        Ok(None) => {
            let outcome = match (probe.run)(canaries) {
                Attempt::Open(what) => Outcome::Open(what),
                Attempt::Stopped(what) => Outcome::Stopped(what),
                Attempt::NotTried(what) => Outcome::NotTried(what),
            };
            let text = serde_json::to_vec(&outcome).unwrap_or_default();
            let _ = writer.write_all(&text);
            std::process::exit(0)
        }
        Err(e) => return Outcome::NotTried(format!("no process: {e}")),
    };
    drop(writer);
    let mut text = Vec::new();
    let _ = reader.read_to_end(&mut text);
    let status = waitpid(Pid::from_raw(child), None);
    match (serde_json::from_slice(&text), status) {
        (Ok(outcome), _) => outcome,
        (Err(_), Ok(WaitStatus::Signaled(_, signal, _))) => {
            Outcome::Stopped(format!("killed by {signal}"))
        }
        (Err(_), other) => Outcome::NotTried(format!("ended with {other:?}")),
    }
}
