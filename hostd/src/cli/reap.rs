//! `hostctl reap`: what is over, and why each clone was taken or left.

use super::args::ReapArgs;
use super::output::{Answer, Failure, Output};
use super::progress::Steps;
use super::remote::Remote;
use super::text::{Table, Tone, clean};
use crate::api::{ErrorCode, ReapLine, ReapParams, ReapResult};

pub(super) async fn run(remote: &Remote, output: &Output, args: ReapArgs) -> Result<Answer, Failure> {
    let mut steps = Steps::new(output);
    let params = ReapParams { dry_run: args.dry_run, name: args.name, progress_token: None };
    let client = remote.client().await?;
    let result = client.reap_with_progress(params, |progress| steps.show(&progress)).await?;
    let answer = Answer::new(&result, explain(output, &result));
    let failed = match (&result.alarm, result.failed.len()) {
        (Some(alarm), _) => alarm.clone(),
        (None, 0) => return Ok(answer),
        (None, failed) => format!("{failed} clones could not be reaped wholly"),
    };
    let hint = "the next run goes on where this one stopped; hostctl doctor may know why";
    Err(Failure::of(ErrorCode::Incomplete, failed).hint(hint).with(answer))
}

fn explain(output: &Output, result: &ReapResult) -> String {
    let taken = if result.dry_run { "would reap" } else { "reaped" };
    let mut table = Table::header(&["DECISION", "CLONE", "REASON", "WHY"]);
    let mut rows = |decision: &str, tone: Tone, lines: &[ReapLine]| {
        for line in lines {
            let reason = line.reason.map_or(String::new(), |reason| reason.word().to_owned());
            let why = [std::slice::from_ref(&line.why), &line.errors].concat().join("; ");
            let cells = [(tone, decision.to_owned()), (Tone::Plain, line.name.clone())];
            table.row([cells.as_slice(), &[(Tone::Plain, reason), (Tone::Plain, why)]].concat());
        }
    };
    rows(taken, Tone::Attention, &result.reaped);
    rows("failed", Tone::Bad, &result.failed);
    rows("keep", Tone::Good, &result.kept);

    let mut text = String::new();
    if result.reaped.len() + result.failed.len() + result.kept.len() > 0 {
        text.push_str(&table.render(output.paint()));
        text.push('\n');
    }
    let (reaped, kept, failed) = (result.reaped.len(), result.kept.len(), result.failed.len());
    text.push_str(&match result.dry_run {
        true => format!("Dry run, nothing was changed: {reaped} would be reaped, {kept} kept.\n"),
        false => format!("{reaped} reaped, {kept} kept, {failed} failed.\n"),
    });
    if let Some(alarm) = &result.alarm {
        text.push_str(&format!("Alarm: {}\n", clean(alarm)));
    }
    text
}
