//! `doctor`: checks whether this machine can confine a browser, and how to fix it if not.

use std::process::ExitCode;

use sandbox::LandlockPolicy;
use sandbox::preflight::{self, Outcome, Report};
use serde_json::{Value, json};

use crate::chromium::{Chromium, Flavor};
use crate::config::{Config, OnMissing};

/// Prints the report. The exit code is 7 if something that the configuration needs is missing.
pub fn run(config: &Config, as_json: bool) -> ExitCode {
    let report = preflight::check(config.bwrap_path.as_deref(), LandlockPolicy::default().abi);
    let chosen = Chromium::find(config.browser.as_deref(), Flavor::Full);
    let browsers = browsers(chosen.as_ref().ok());
    let ready = report.problems().next().is_none() && chosen.is_ok();
    if as_json {
        let data = json!({ "ready": ready, "sandbox": report, "browsers": browsers, "config": config });
        let report = json_report(ready, data, chosen.as_ref().err().map(ToString::to_string), &report);
        println!("{}", safe_text::json(&report.to_string()));
    } else {
        print_text(config, &report, &browsers);
        match &chosen {
            Ok(chromium) => println!("\nBrowser to start: {}", chromium.executable.display()),
            Err(error) => println!("\n{error}"),
        }
        println!(
            "{}",
            if ready {
                "This machine is ready."
            } else {
                "This machine is NOT ready: nothing will be started."
            }
        );
    }
    if ready { ExitCode::SUCCESS } else { ExitCode::from(7) }
}

fn browsers(chosen: Option<&Chromium>) -> Vec<Value> {
    let mut all = Chromium::all();
    all.extend(chosen.filter(|chosen| !all.contains(chosen)).cloned());
    let describe = |chromium: &Chromium| {
        let version = chromium.version().unwrap_or_else(|error| format!("unknown ({error})"));
        json!({ "executable": chromium.executable, "flavor": chromium.flavor, "version": version })
    };
    all.iter().map(describe).collect()
}

fn json_report(ready: bool, data: Value, no_browser: Option<String>, report: &Report) -> Value {
    if ready {
        return json!({ "success": true, "data": data });
    }
    let problem = report.problems().next();
    let message = no_browser.or(problem.map(|probe| probe.found.clone())).unwrap_or_default();
    let hint = problem.and_then(|probe| probe.fix.clone());
    let error = json!({ "code": "host-not-ready", "message": message, "hint": hint, "retryable": false });
    json!({ "success": false, "error": error, "data": data })
}

fn print_text(config: &Config, report: &Report, browsers: &[Value]) {
    for probe in &report.probes {
        let mark = match probe.outcome {
            Outcome::Good => "ok  ",
            Outcome::Note => "note",
            Outcome::Bad => "BAD ",
        };
        println!("{mark}  {:<28} {}", probe.name, safe_text::line(&probe.found));
        if let Some(fix) = &probe.fix {
            println!("      {:<28} to fix it: {fix}", "");
        }
    }
    println!();
    for browser in browsers {
        let text = |key: &str| safe_text::line(browser[key].as_str().unwrap_or_default()).into_owned();
        println!("browser  {}  ({}, {})", text("version"), text("flavor"), text("executable"));
    }
    if config.on_missing == OnMissing::Warn {
        println!("note  on_missing = \"warn\": the browser is started even if layers are missing");
    }
    if !config.enabled {
        println!("note  enabled = false: the browser is started without this sandbox");
    }
}
