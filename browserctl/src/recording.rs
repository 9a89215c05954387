//! `browserctl recording`.

use crate::args::RecordingArgs;
use crate::export;
use crate::output::{CommandOutput, Failure, Output};
use crate::remote::Remote;
use crate::show;
use controlplane::client::encode;
use hyper::Method;
use serde_json::{Value, json};
use std::io::{BufWriter, Write};
use terminal::Exit;
use terminal::text::clean;

pub(crate) async fn list(remote: &Remote, output: &Output) -> Result<CommandOutput, Failure> {
    let data: Value = remote.client().get("/v1/recordings").await?;
    let text = show::value(&data, output.paint());
    Ok(CommandOutput { data, text })
}

/// Write the pictures one after the other: a long recording never is in memory as a whole.
pub(crate) async fn export(remote: &Remote, args: RecordingArgs) -> Result<CommandOutput, Failure> {
    let path = format!("/v1/recordings/{}", encode(&args.id));
    let recording: Value = remote.client().get(&path).await?;
    let frames = recording["frames"].as_array().filter(|frames| !frames.is_empty()).ok_or_else(|| {
        Failure::local(Exit::NotFound, "not_found", format!("the recording of {} has no pictures", args.id))
            .hint("browserctl recording ls lists the recordings")
    })?;
    let shown = args.output.display();
    let failed = |error: std::io::Error| {
        Failure::local(Exit::Failure, "internal", format!("cannot write {shown}: {error}"))
            .hint("name another file with --output")
    };
    // Beside the result, and renamed at the end: an export that fails leaves no half page.
    let mut part = args.output.clone().into_os_string();
    part.push(".part");
    let mut page = BufWriter::new(std::fs::File::create(&part).map_err(failed)?);
    let written = async {
        page.write_all(export::head(&args.id, frames).as_bytes()).map_err(failed)?;
        for frame in frames {
            let number = frame["number"].as_i64().unwrap_or_default();
            let picture = remote.client().bytes(Method::GET, &format!("{path}/{number}"), None).await?;
            page.write_all(export::frame(frame, &picture).as_bytes()).map_err(failed)?;
        }
        page.write_all(export::TAIL.as_bytes()).and_then(|()| page.flush()).map_err(failed)?;
        std::fs::rename(&part, &args.output).map_err(failed)
    };
    if let Err(failure) = written.await {
        let _ = std::fs::remove_file(&part);
        return Err(failure);
    }
    let data = json!({ "file": args.output, "frames": frames.len() });
    Ok(CommandOutput { data, text: format!("{}\n", clean(&args.output.display().to_string())) })
}
