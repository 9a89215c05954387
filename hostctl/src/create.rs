//! `hostctl create`.

use crate::args::CreateArgs;
use crate::output::{CommandOutput, Failure, Output};
use crate::progress::Steps;
use crate::remote::Remote;
use hostd::api::{Callers, CloneInfo, CreateParams, CreateResult, Limits, RequestId, StageTiming};
use hostd::client::ClientError;
use std::fmt::Write;
use terminal::text::{Table, Tone, ago, clean, seconds};

pub(crate) async fn run(
    remote: &Remote,
    output: &Output,
    args: CreateArgs,
) -> Result<CommandOutput, Failure> {
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
    // hostd takes whole seconds, at least 1.
    params.deadline_seconds = args.deadline.map(|deadline| deadline.as_secs().max(1));
    params.limits = (limits != Limits::default()).then_some(limits);

    let mut steps = Steps::new(output);
    let client = remote.client().await?;
    let request = params.request_id.clone();
    let created = client.create_with_progress(params, |progress| steps.show(&progress)).await;
    let result = created.map_err(|error| match error {
        // The caller needs the request id to join the operation, and it may be a random one.
        error @ (ClientError::Timeout(_) | ClientError::Closed(_)) => {
            let hint = format!("the operation continues; the same call with --request-id {request} joins it");
            Failure::from(error).hint(hint)
        }
        error => error.into(),
    })?;

    let mut text = describe(&result);
    if !steps.seen() {
        text.push_str(&stages(output, &result.clone.stages));
    }
    if result.renewed {
        text.push_str("The clone already existed; its lease is renewed.\n");
    }
    Ok(CommandOutput::new(&result, text))
}

pub(crate) fn random_request() -> RequestId {
    format!("hostctl-{}", uuid::Uuid::new_v4().simple()).parse().expect("letters, digits and a dash")
}

fn describe(result: &CreateResult) -> String {
    let clone = &result.clone;
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
    if let Some(secret) = &result.secret {
        line("secret", secret.as_str());
    }
    if let Some(endpoint) = &clone.cdp_endpoint {
        line("raw CDP", endpoint);
    }
    line("callers", &callers(&result.callers));
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

/// Who may connect to the endpoint, as a sentence.
fn callers(callers: &Callers) -> String {
    let users: Vec<String> = callers
        .users
        .iter()
        .map(|user| match user {
            0 => "root".to_owned(),
            user => format!("user {user}"),
        })
        .collect();
    let mut text = match users.split_last() {
        None => "nobody on this host".to_owned(),
        Some((last, [])) => format!("{last} on this host"),
        Some((last, others)) => format!("{} and {last} on this host", others.join(", ")),
    };
    if !callers.networks.is_empty() {
        text.push_str(&format!("; {}", callers.networks.join(", ")));
    }
    let own = nix::unistd::geteuid().as_raw();
    if !callers.users.contains(&own) {
        text.push_str(&format!("; not you, user {own} (egress.control_users)"));
    }
    text
}

pub(crate) fn address(clone: &CloneInfo) -> String {
    match clone.ip6 {
        Some(ip6) => format!("{} {ip6}", clone.ip),
        None => clone.ip.to_string(),
    }
}

/// The table of stages after an empty line, or nothing if there are none.
pub(crate) fn stages(output: &Output, stages: &[StageTiming]) -> String {
    if stages.is_empty() {
        return String::new();
    }
    let mut table = Table::header(&["STAGE", "TIME"]);
    for stage in stages {
        table.row(vec![(Tone::Plain, stage.stage.clone()), (Tone::Plain, seconds(stage.seconds))]);
    }
    format!("\n{}", table.render(output.paint()))
}
