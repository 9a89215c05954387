//! `browserctl audit`.

use crate::args::{ExportArgs, TailArgs};
use crate::output::{CommandOutput, Failure, Output, line};
use crate::remote::Remote;
use crate::show;
use controlplane::client::encode;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::time::Duration;
use terminal::Exit;

/// Rows of one request.
const PAGE: usize = 1000;

/// How often a follower looks for new rows.
const FOLLOW: Duration = Duration::from_secs(1);

/// One page of rows after a number, the oldest first, and the number to go on from.
async fn page(remote: &Remote, after: i64, of: Option<&str>) -> Result<(Vec<Value>, i64), Failure> {
    let mut path = format!("/v1/audit?after={after}&limit={PAGE}");
    if let Some(session) = of {
        path.push_str(&format!("&session_id={}", encode(session)));
    }
    let mut answer: Value = remote.client().get(&path).await?;
    let rows = match answer["rows"].take() {
        Value::Array(rows) => rows,
        _ => return Err(Failure::local(Exit::Failure, "protocol", "the answer of /v1/audit has no rows")),
    };
    let last = rows.last().and_then(|row| row["seq"].as_i64()).unwrap_or(after);
    Ok((rows, last))
}

pub(crate) async fn tail(remote: &Remote, output: &Output, args: TailArgs) -> Result<CommandOutput, Failure> {
    let of = args.of.as_deref();
    let (mut rows, mut after) = (VecDeque::new(), 0);
    loop {
        let (more, last) = page(remote, after, of).await?;
        let end = more.len() < PAGE;
        after = last;
        rows.extend(more);
        while rows.len() > args.lines as usize {
            rows.pop_front();
        }
        if end {
            break;
        }
    }
    let rows: Vec<Value> = rows.into();
    if !args.follow {
        let text = if rows.is_empty() { "no rows\n".to_owned() } else { show::table(&rows, output.paint()) };
        return Ok(CommandOutput { data: json!({ "rows": rows }), text });
    }
    // A follower prints rows one by one: a table would need to know all of them.
    let print = |row: &Value| terminal::print(&if output.json() { line(row) } else { sentence(row) });
    let mut going = rows.iter().all(print);
    while going {
        tokio::time::sleep(FOLLOW).await;
        let (more, last) = page(remote, after, of).await?;
        after = last;
        going = more.iter().all(print);
    }
    Err(Failure::local(Exit::Failure, "internal", "the rows cannot be written to standard output"))
}

/// One row as one line.
fn sentence(row: &Value) -> String {
    let words = ["seq", "at", "actor", "session", "verb", "event", "outcome", "params"];
    let words = words.iter().map(|name| match &row[*name] {
        Value::Null => String::new(),
        Value::String(text) => terminal::text::clean(text).into_owned(),
        other => terminal::text::clean_json(&other.to_string()).into_owned(),
    });
    format!("{}\n", words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join("  "))
}

pub(crate) async fn export(
    remote: &Remote,
    output: &Output,
    args: ExportArgs,
) -> Result<CommandOutput, Failure> {
    let (mut after, mut count) = (args.after, 0);
    loop {
        let (rows, last) = page(remote, after, args.of.as_deref()).await?;
        let text: String = rows.iter().map(line).collect();
        if !terminal::print(&text) {
            return Err(Failure::local(
                Exit::Failure,
                "internal",
                "the rows cannot be written to standard output",
            ));
        }
        count += rows.len();
        after = last;
        if rows.len() < PAGE {
            break;
        }
    }
    output.note(&format!("{count} rows"));
    Ok(CommandOutput::none())
}

pub(crate) async fn verify(remote: &Remote, output: &Output) -> Result<CommandOutput, Failure> {
    let report: Value = remote.client().get("/v1/audit/verify").await?;
    let text = show::value(&report, output.paint());
    let intact = report["intact"].as_bool().unwrap_or(false);
    let shown = CommandOutput { data: report, text };
    if intact {
        return Ok(shown);
    }
    let hint =
        "keep the database and the file of signed heads as they are: together they show what was changed";
    Err(Failure::local(Exit::Failure, "audit_broken", "the audit log is not intact")
        .hint(hint)
        .with_output(shown))
}
