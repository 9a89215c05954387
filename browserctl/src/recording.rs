//! `browserctl recording`.

use crate::args::RecordingArgs;
use crate::output::{CommandOutput, Failure, Output};
use crate::remote::Remote;
use crate::show;
use controlplane::client::encode;
use serde_json::{Value, json};
use std::io::Write;
use terminal::Exit;
use terminal::text::clean;

pub(crate) async fn list(remote: &Remote, output: &Output) -> Result<CommandOutput, Failure> {
    let data: Value = remote.client().get("/v1/recordings").await?;
    let text = show::value(&data, output.paint());
    Ok(CommandOutput { data, text })
}

/// Write the page that the service makes, as it arrives: a long recording is never in memory as a whole.
pub(crate) async fn export(remote: &Remote, args: RecordingArgs) -> Result<CommandOutput, Failure> {
    let shown = args.output.display();
    let failed = |error: std::io::Error| {
        Failure::local(Exit::Failure, "internal", format!("cannot write {shown}: {error}"))
            .hint("name another file with --output")
    };
    let mut page = remote.patient().stream(&format!("/v1/recordings/{}/export", encode(&args.id))).await?;
    // Beside the result, and renamed at the end: an export that fails leaves no half page.
    let mut part = args.output.clone().into_os_string();
    part.push(".part");
    let mut file = std::fs::File::create(&part).map_err(failed)?;
    let mut size = 0;
    let written = async {
        while let Some(bytes) = page.next().await? {
            file.write_all(&bytes).map_err(failed)?;
            size += bytes.len();
        }
        std::fs::rename(&part, &args.output).map_err(failed)
    };
    if let Err(failure) = written.await {
        let _ = std::fs::remove_file(&part);
        return Err(failure);
    }
    let data = json!({ "file": args.output, "bytes": size });
    Ok(CommandOutput { data, text: format!("{}\n", clean(&args.output.display().to_string())) })
}
