//! `hostctl status`, `hostctl metrics` and `hostctl call`: one question, one answer.

use crate::args::CallArgs;
use crate::output::{CommandOutput, Failure};
use crate::remote::Remote;
use hostd::api::{StatusParams, StatusResult};
use serde_json::{Value, json};
use std::fmt::Write;
use std::io::Read;
use terminal::Exit;
use terminal::text::{ago, clean, clean_json};

pub(crate) async fn status(remote: &Remote) -> Result<CommandOutput, Failure> {
    let status = remote.client().await?.status(StatusParams::default()).await?;
    Ok(CommandOutput::new(&status, describe(&status)))
}

fn describe(status: &StatusResult) -> String {
    let mut text = String::new();
    let mut line = |key: &str, value: String| {
        let _ = writeln!(text, "{key:<12}{}", clean(&value));
    };
    line("hostd", format!("{}, up {}", status.version, ago(status.uptime_seconds)));
    let drivers: Vec<String> = status.host.iter().map(|(part, driver)| format!("{part} {driver}")).collect();
    line("host", drivers.join(", "));
    line("pool", format!("{}, {} slots", status.pool, status.slots));
    let states: Vec<String> = status
        .clones
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(state, count)| format!("{count} {}", state.word()))
        .collect();
    let states = if states.is_empty() { "none".to_owned() } else { states.join(", ") };
    line("clones", format!("{states} (at most {})", status.max_clones));
    if let Some(pool) = &status.warm_pool {
        let wanted = pool.size * pool.flavors.len() as u64;
        line("made ahead", format!("{} of {wanted}, {} taken", pool.members.len(), pool.hits));
    }
    line("under way", format!("operations: {}, connections: {}", status.operations, status.connections));
    line("egress", status.egress.problem().unwrap_or("ok").to_owned());
    for alarm in &status.alarms {
        line("alarm", alarm.clone());
    }
    text
}

pub(crate) async fn metrics(remote: &Remote) -> Result<CommandOutput, Failure> {
    let params = StatusParams { checks: false, metrics: true };
    let status = remote.client().await?.status(params).await?;
    let Some(metrics) = status.metrics else {
        return Err(Failure::local(Exit::Failure, "protocol", "the answer of hostd has no metrics"));
    };
    Ok(CommandOutput { data: json!({ "metrics": metrics }), text: safe_text::lines(&metrics).into_owned() })
}

pub(crate) async fn call(remote: &Remote, args: CallArgs) -> Result<CommandOutput, Failure> {
    let wrong = |message: String| Failure::local(Exit::Usage, "usage", message).hint("give one JSON object");
    let mut params = args.params;
    if params == "-" {
        params.clear();
        std::io::stdin()
            .read_to_string(&mut params)
            .map_err(|error| wrong(format!("cannot read standard input: {error}")))?;
    }
    let params: Value = serde_json::from_str(&params)
        .map_err(|error| wrong(format!("the parameters are not JSON: {error}")))?;
    if !params.is_object() {
        return Err(wrong("the parameters are not a JSON object".into()));
    }
    let result: Value = remote.client().await?.call(&args.method, &params).await?;
    let text = serde_json::to_string_pretty(&result).expect("JSON is JSON");
    Ok(CommandOutput { data: result, text: format!("{}\n", clean_json(&text)) })
}
