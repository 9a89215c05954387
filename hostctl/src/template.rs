//! `hostctl template`. It changes the host directly, without the daemon, so it needs root.

use crate::args::{TemplateArgs, TemplateCommand};
use crate::output::{CommandOutput, Failure, Output};
use hostd::api::ErrorCode;
use hostd::host::{HostError, HostErrorKind, chain, templates};
use serde_json::json;
use terminal::text::{Table, Tone, clean};

pub(crate) async fn run(output: &Output, args: TemplateArgs) -> Result<CommandOutput, Failure> {
    let config = settings::load::<hostd::config::Config>(args.config.as_deref(), std::iter::empty(), &[])
        .map_err(|error| {
            Failure::of(ErrorCode::InvalidParams, error.to_string())
                .hint("hostctl doctor lists every problem")
        })?;
    let name = &config.host.template;
    match args.what {
        TemplateCommand::Create { snapshot, browser } => {
            let snapshot = snapshot.unwrap_or_else(|| config.host.snapshot.clone());
            let version = templates::create(&config, &snapshot, browser.as_deref()).await.map_err(failure)?;
            let text = format!("template {name}, snapshot {snapshot}: {}\n", clean(&version));
            Ok(CommandOutput {
                data: json!({ "template": name, "snapshot": snapshot, "version": version }),
                text,
            })
        }
        TemplateCommand::Rm { snapshot } => {
            templates::remove(&config, &snapshot).await.map_err(failure)?;
            let text = format!("template {name}, snapshot {snapshot} is removed\n");
            Ok(CommandOutput { data: json!({ "template": name, "snapshot": snapshot }), text })
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
            Ok(CommandOutput { data: json!({ "templates": data }), text: table.render(output.paint()) })
        }
    }
}

fn failure(error: HostError) -> Failure {
    let code = match error.kind {
        HostErrorKind::Busy => ErrorCode::TemplateInUse,
        _ => ErrorCode::TemplateUnusable,
    };
    Failure::of(code, chain(&error)).hint(error.hint)
}
