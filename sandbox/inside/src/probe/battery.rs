//! Runs every probe in its own process and writes one finding per line.
//!
//! A probe may be killed (one way of being stopped) or change namespaces, limits or descriptors.
//! Its own process keeps that from affecting the next probe.

use super::{Attempt, Probe, execution, files, kernel, limits, network, processes, resources};
use crate::findings::{Canaries, Finding, Outcome};
use crate::linux::sys;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use std::io::{Read, Write};
use std::process::ExitCode;

/// Reads the canaries as JSON from the second argument and writes the findings to standard output.
pub fn run() -> ExitCode {
    let Some(canaries) =
        std::env::args().nth(2).and_then(|text| serde_json::from_str::<Canaries>(&text).ok())
    else {
        eprintln!("the second argument must be the canaries as JSON");
        return ExitCode::from(2);
    };
    for probe in all() {
        let finding = Finding {
            name: probe.name.to_owned(),
            attempt: probe.attempt.to_owned(),
            layers: probe.layers.to_vec(),
            outcome: run_in_child(probe, &canaries),
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
        resources::PROBES,
    ]
    .into_iter()
    .flatten()
}

fn run_in_child(probe: &Probe, canaries: &Canaries) -> Outcome {
    let Ok((mut reader, mut writer)) = std::io::pipe() else {
        return Outcome::NotTried("cannot create a pipe".to_owned());
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
        Err(e) => return Outcome::NotTried(format!("fork: {e}")),
    };
    drop(writer);
    let mut text = Vec::new();
    let _ = reader.read_to_end(&mut text);
    let status = waitpid(Pid::from_raw(child), None);
    match (serde_json::from_slice(&text), status) {
        (Ok(outcome), _) => outcome,
        (Err(_), Ok(WaitStatus::Signaled(_, signal, _))) => Outcome::Stopped(format!("killed by {signal}")),
        (Err(_), other) => Outcome::NotTried(format!("ended with {other:?}")),
    }
}
