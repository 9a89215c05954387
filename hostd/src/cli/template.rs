//! `hostctl template`: works on the host directly, not through the daemon. Templates are the operator's.

use super::args::{TemplateArgs, TemplateCommand};
use super::output::{Answer, Failure, Output};
use super::text::{Table, Tone};
use crate::api::ErrorCode;
use crate::config;
use crate::host::{HostError, HostErrorKind, templates};
use serde_json::json;

pub(super) async fn run(output: &Output, args: TemplateArgs) -> Result<Answer, Failure> {
    let config = config::load(args.config.as_deref(), std::iter::empty(), &[]).map_err(|error| {
        Failure::of(ErrorCode::InvalidParams, error.to_string()).hint("hostctl doctor looks closer")
    })?;
    let name = &config.host.template;
    match args.what {
        TemplateCommand::Create { snapshot, browser } => {
            let snapshot = snapshot.unwrap_or_else(|| config.host.snapshot.clone());
            let version = templates::create(&config, &snapshot, browser.as_deref()).await.map_err(failure)?;
            let text = format!("template {name}, snapshot {snapshot}: {version}\n");
            Ok(Answer { data: json!({ "template": name, "snapshot": snapshot, "version": version }), text })
        }
        TemplateCommand::Rm { snapshot } => {
            templates::remove(&config, &snapshot).await.map_err(failure)?;
            let text = format!("template {name}, snapshot {snapshot} is removed\n");
            Ok(Answer { data: json!({ "template": name, "snapshot": snapshot }), text })
        }
        TemplateCommand::Ls => {
            let all = templates::list(&config).await.map_err(failure)?;
            let mut table = Table::header(&["SNAPSHOT", "STATE", "BROWSER"]);
            let mut data = Vec::new();
            for (snapshot, state) in all {
                let (tone, word, about) = match &state {
                    Ok(version) => (Tone::Good, "usable", version),
                    Err(why) => (Tone::Bad, "unusable", why),
                };
                data.push(json!({ "snapshot": snapshot, "state": word, "browser": about }));
                table.row(vec![
                    (Tone::Plain, snapshot.to_string()),
                    (tone, word.to_owned()),
                    (Tone::Plain, about.clone()),
                ]);
            }
            Ok(Answer { data: json!({ "templates": data }), text: table.render(output.paint()) })
        }
    }
}

fn failure(error: HostError) -> Failure {
    let code = match error.kind {
        HostErrorKind::Busy => ErrorCode::TemplateInUse,
        _ => ErrorCode::TemplateUnusable,
    };
    Failure::of(code, error.to_string()).hint(error.hint)
}
