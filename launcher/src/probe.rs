//! `probe`: reports what a compromised browser process could reach.
//!
//! First the confined browser is started, to show that it runs with its own sandbox active. Then the escape battery of
//! `sandbox` runs in its place under exactly the same policy. The battery targets only its own canaries on this
//! machine's loopback; no packet is sent anywhere else.

use std::process::ExitCode;

use sandbox::battery::{self, Options, Report};
use serde_json::json;

use crate::blueprint::{Blueprint, LaunchRequest};
use crate::config::Config;
use crate::launch::{LaunchError, Launcher};
use crate::ready::RendererProof;

/// Prints the report. The exit code is 1 if a probe got through.
pub fn run(config: &Config, as_json: bool) -> ExitCode {
    let (version, proof, report) = match probe(config) {
        Ok(found) => found,
        Err(error) if as_json => {
            let problem = json!({ "code": "probe-failed", "message": crate::error_chain(&error), "hint": null, "retryable": false });
            println!("{}", safe_text::json(&json!({ "success": false, "error": problem }).to_string()));
            return ExitCode::from(error.exit_code());
        }
        Err(error) => {
            crate::say(&crate::error_chain(&error));
            return ExitCode::from(error.exit_code());
        }
    };
    let open = report.open().count();
    if as_json {
        let data = json!({ "browser": version, "renderer": proof, "open": open, "battery": report });
        println!("{}", safe_text::json(&json!({ "success": true, "data": data }).to_string()));
    } else {
        println!(
            "{} started; renderer {} has its own user namespace and {} own system call filter(s).",
            safe_text::line(&version),
            proof.pid,
            proof.own_seccomp_filters
        );
        println!("In its place, under the same policy:\n\n{}", safe_text::lines(&report.to_string()));
    }
    if open == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn probe(config: &Config) -> Result<(String, RendererProof, Report), LaunchError> {
    let arguments = ["--headless"];
    let mut browser = Launcher::new(config.clone()).arguments(arguments)?.launch()?;
    let (version, proof) = (
        browser.version().to_owned(),
        browser.renderer().expect("a browser with a pipe was verified").clone(),
    );
    browser
        .stop(std::time::Duration::from_secs(5))
        .map_err(|source| LaunchError::Io { what: "the browser".into(), source })?;
    drop(browser);

    let mut request = LaunchRequest::default();
    request.flags.set("headless", None);
    let blueprint = Blueprint::new(config, request)?;
    let options = Options { bubblewrap: config.bwrap_path.clone(), ..Options::default() };
    Ok((version, proof, battery::run(&blueprint.policy, &options)?))
}
