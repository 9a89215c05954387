//! `hostctl create`.

use super::args::CreateArgs;
use super::output::{Answer, Failure, Output};
use super::progress::Steps;
use super::remote::Remote;
use super::text::{Table, Tone, ago, clean, seconds};
use crate::api::{CloneInfo, CreateParams, Limits, RequestId, StageTiming};
use crate::client::ClientError;
use std::fmt::Write;

pub(super) async fn run(remote: &Remote, output: &Output, args: CreateArgs) -> Result<Answer, Failure> {
    let limits = Limits {
        memory_bytes: args.memory,
        processes: args.processes,
        open_files: args.open_files,
        cpu_percent: args.cpu,
        disk_bytes: args.disk,
        read_bytes_per_second: args.read_rate,
        write_bytes_per_second: args.write_rate,
    };
    let mut params = CreateParams::new(args.request_id.unwrap_or_else(random_request));
    params.tenant = args.tenant;
    params.name = args.name;
    params.snapshot = args.snapshot;
    // A part of a second is not worth an error, and never worth a zero.
    params.deadline_seconds = args.deadline.map(|deadline| deadline.as_secs().max(1));
    params.limits = (limits != Limits::default()).then_some(limits);

    let mut steps = Steps::new(output);
    let client = remote.client().await?;
    let request = params.request_id.clone();
    let created = client.create_with_progress(params, |progress| steps.show(&progress)).await;
    let result = created.map_err(|error| match error {
        // Without its id a request cannot be joined, and the id may be one that nobody has seen.
        error @ (ClientError::Timeout(_) | ClientError::Closed(_)) => {
            let hint = format!("hostd goes on with it; the same call with --request-id {request} joins it");
            Failure::from(error).hint(hint)
        }
        error => error.into(),
    })?;

    let mut text = describe(&result.clone);
    if !steps.seen() {
        text.push_str(&stages(output, &result.clone.stages));
    }
    if result.renewed {
        text.push_str("The clone was already there; its lease is renewed.\n");
    }
    Ok(Answer::new(&result, text))
}

pub(super) fn random_request() -> RequestId {
    format!("hostctl-{}", uuid::Uuid::new_v4().simple()).parse().expect("letters, digits and a dash")
}

fn describe(clone: &CloneInfo) -> String {
    let mut text = String::new();
    let mut line = |key: &str, value: &str| {
        let _ = writeln!(text, "{key:<11}{}", clean(value));
    };
    line("name", clone.name.as_str());
    if let Some(id) = &clone.clone_id {
        line("clone id", id.as_str());
    }
    if let Some(id) = &clone.request_id {
        line("request id", id.as_str());
    }
    line("state", clone.state.word());
    line("address", &address(clone));
    if let Some(endpoint) = &clone.endpoint {
        line("endpoint", endpoint);
    }
    if let Some(endpoint) = &clone.cdp_endpoint {
        line("raw CDP", endpoint);
    }
    if let Some(left) = clone.deadline_seconds_left {
        let at = clone.deadline_at.as_deref().unwrap_or("unknown");
        line("deadline", &format!("in {} ({at})", ago(left)));
    }
    if !clone.limits_not_kept.is_empty() {
        line("not kept", &clone.limits_not_kept.join(", "));
    }
    if let Some(problem) = &clone.problem {
        line("problem", problem);
    }
    text
}

pub(super) fn address(clone: &CloneInfo) -> String {
    match clone.ip6 {
        Some(ip6) => format!("{} {ip6}", clone.ip),
        None => clone.ip.to_string(),
    }
}

/// The table of stages, with an empty line before it; nothing when there are none.
pub(super) fn stages(output: &Output, stages: &[StageTiming]) -> String {
    if stages.is_empty() {
        return String::new();
    }
    let mut table = Table::header(&["STAGE", "TIME"]);
    for stage in stages {
        table.row(vec![(Tone::Plain, stage.stage.clone()), (Tone::Plain, seconds(stage.seconds))]);
    }
    format!("\n{}", table.render(output.paint()))
}
