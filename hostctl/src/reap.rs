//! `hostctl reap`: destroys what is due and says why each clone was reaped or kept.

use crate::args::ReapArgs;
use crate::output::{CommandOutput, Failure, Output};
use crate::progress::Steps;
use crate::remote::Remote;
use hostd::api::{ErrorCode, ReapLine, ReapParams, ReapResult};
use terminal::text::{Table, Tone, clean};

pub(crate) async fn run(remote: &Remote, output: &Output, args: ReapArgs) -> Result<CommandOutput, Failure> {
    let mut steps = Steps::new(output);
    let params = ReapParams { dry_run: args.dry_run, name: args.name, progress_token: None };
    let client = remote.client().await?;
    let result = client.reap_with_progress(params, |progress| steps.show(&progress)).await?;
    let shown = CommandOutput::new(&result, explain(output, &result));
    let failed = match (&result.alarm, result.failed.len()) {
        (Some(alarm), _) => alarm.clone(),
        (None, 0) => return Ok(shown),
        (None, failed) => format!("{failed} clones could not be reaped completely"),
    };
    let hint = "the next run continues; hostctl doctor may show the cause";
    Err(Failure::of(ErrorCode::Incomplete, failed).hint(hint).with_output(shown))
}

fn explain(output: &Output, result: &ReapResult) -> String {
    let reaped_label = if result.dry_run { "would reap" } else { "reaped" };
    let mut table = Table::header(&["DECISION", "CLONE", "REASON", "WHY"]);
    let mut rows = |decision: &str, tone: Tone, lines: &[ReapLine]| {
        for line in lines {
            let reason = line.reason.map_or(String::new(), |reason| reason.word().to_owned());
            let why = [std::slice::from_ref(&line.why), &line.errors].concat().join("; ");
            let cells = [(tone, decision.to_owned()), (Tone::Plain, line.name.clone())];
            table.row([cells.as_slice(), &[(Tone::Plain, reason), (Tone::Plain, why)]].concat());
        }
    };
    rows(reaped_label, Tone::Attention, &result.reaped);
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
