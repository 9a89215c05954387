//! A recording as one HTML page: a time line of what was done, and the pictures in it. The page has no script and loads
//! nothing.

use super::{Recordings, media_type};
use crate::error::ApiError;
use crate::store::{AuditFilter, AuditRow, FrameRow, RecordingRow};
use crate::time::rfc3339;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use std::collections::HashMap;
use std::fmt::Write;

/// How many rows of the audit log the page has at most.
const MAX_ROWS: usize = 20_000;
const PAGE: u32 = 1000;

const STYLE: &str = "\
:root{color-scheme:light dark;font:14px/1.5 system-ui,sans-serif}\
body{max-width:72rem;margin:2rem auto;padding:0 1rem}\
table{border-collapse:collapse}th{text-align:left;padding-right:1.5rem;font-weight:600}\
ol{list-style:none;padding:0;border-left:2px solid #8888;margin:2rem 0}\
li{padding:.3rem 0 .3rem 1.2rem;position:relative}\
li::before{content:'';position:absolute;left:-5px;top:.9rem;width:8px;height:8px;border-radius:50%;background:#888}\
li.failed::before{background:#c33}li.picture::before{background:#38c}\
time{font-variant-numeric:tabular-nums;opacity:.7;margin-right:1em}code{overflow-wrap:anywhere}\
img{display:block;max-width:100%;height:auto;margin:.5rem 0;border:1px solid #8888}";

/// What is on the time line.
enum Moment {
    Did(AuditRow, Option<String>),
    Saw(FrameRow),
}

pub(super) async fn export(
    recordings: &Recordings,
    recording: RecordingRow,
) -> Result<BoxStream<'static, Result<Bytes, ApiError>>, ApiError> {
    let frames = recordings.0.store.frames(&recording.session).await?;
    let mut moments: Vec<(i64, Moment)> =
        frames.into_iter().map(|frame| (frame.captured_at, Moment::Saw(frame))).collect();
    moments.extend(
        actions(recordings, &recording)
            .await?
            .into_iter()
            .map(|(row, outcome)| (row.at, Moment::Did(row, outcome))),
    );
    moments.sort_by_key(|(at, _)| *at);
    let head = head(&recording);
    let start = recording.first_at.min(moments.first().map_or(recording.first_at, |(at, _)| *at));
    let recordings = recordings.clone();
    let body = stream::iter(moments).then(move |(at, moment)| {
        let (recordings, recording) = (recordings.clone(), recording.clone());
        async move {
            let after = format!("+{:.1} s", (at - start).max(0) as f64 / 1000.0);
            let line = match moment {
                Moment::Did(row, outcome) => action(&row, outcome.as_deref(), &after),
                Moment::Saw(frame) => picture(&recordings, &recording, &frame, &after).await,
            };
            Ok(Bytes::from(line))
        }
    });
    let whole = stream::iter([Ok(Bytes::from(head))]).chain(body);
    Ok(whole.chain(stream::iter([Ok(Bytes::from_static(b"</ol>\n</body></html>\n"))])).boxed())
}

/// What was done in the session, with the outcomes.
async fn actions(
    recordings: &Recordings,
    recording: &RecordingRow,
) -> Result<Vec<(AuditRow, Option<String>)>, ApiError> {
    let (mut begun, mut outcomes) = (Vec::new(), HashMap::new());
    let mut after_seq = 0;
    loop {
        let filter = AuditFilter {
            tenant: Some(recording.tenant.clone()),
            session: Some(recording.session.clone()),
            after_seq,
            limit: PAGE,
        };
        let rows = recordings.0.store.audit_rows(&filter).await?;
        let Some(last) = rows.last() else { break };
        after_seq = last.seq;
        for row in rows {
            match row.event.as_str() {
                "begin" => begun.push(row),
                _ => drop(outcomes.insert(row.call, row.outcome)),
            }
        }
        if begun.len() >= MAX_ROWS {
            break;
        }
    }
    Ok(begun
        .into_iter()
        .map(|row| {
            let outcome = outcomes.remove(&row.call).flatten();
            (row, outcome)
        })
        .collect())
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

fn head(recording: &RecordingRow) -> String {
    let mut html = String::new();
    let session = escape(recording.session.as_str());
    let _ = write!(
        html,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{session}</title><style>{STYLE}</style></head>\n\
         <body><h1>{session}</h1>\n<table>"
    );
    let ended = recording.closed_at.map_or_else(|| "open".to_owned(), rfc3339);
    for (name, value) in [
        ("Tenant", recording.tenant.to_string()),
        ("Owner", recording.owner.clone()),
        ("Opened", rfc3339(recording.created_at)),
        ("Ended", ended),
        ("Pictures", recording.frames.to_string()),
    ] {
        let _ = write!(html, "<tr><th>{name}</th><td>{}</td></tr>", escape(&value));
    }
    html.push_str("</table>\n<ol>\n");
    html
}

fn action(row: &AuditRow, outcome: Option<&str>, after: &str) -> String {
    let class = if outcome.is_some_and(|outcome| outcome != "ok") { " class=\"failed\"" } else { "" };
    format!(
        "<li{class}><time datetime=\"{}\">{after}</time><b>{}</b> by {} <code>{}</code> → {}</li>\n",
        rfc3339(row.at),
        escape(&row.verb),
        escape(&row.actor),
        escape(row.params.as_deref().unwrap_or("{}")),
        escape(outcome.unwrap_or("no outcome")),
    )
}

async fn picture(recordings: &Recordings, recording: &RecordingRow, frame: &FrameRow, after: &str) -> String {
    let at = rfc3339(frame.captured_at);
    let (number, verb) = (frame.number, escape(&frame.verb));
    let head = format!(
        "<li class=\"picture\" id=\"p{number}\"><time datetime=\"{at}\">{after}</time>{number}: {verb}, {at}"
    );
    match recordings.picture(&recording.tenant, &recording.session, frame).await {
        Ok(bytes) => {
            let (width, height, kind) = (frame.width, frame.height, media_type(&frame.format));
            let mut html = format!(
                "{head}<img width=\"{width}\" height=\"{height}\" alt=\"{number}\" src=\"data:{kind};base64,"
            );
            STANDARD.encode_string(&bytes, &mut html);
            html.push_str("\"></li>\n");
            html
        }
        // The page says what it lacks.
        Err(error) => format!("{head}<p>{}</p></li>\n", escape(error.message())),
    }
}
