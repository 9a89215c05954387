//! `browserctl whoami`, `status` and `cdp`.

use crate::args::Globals;
use crate::output::{CommandOutput, Failure, Output};
use crate::remote::Remote;
use crate::{show, verbs};
use controlplane::client::encode;
use hyper::Method;
use serde_json::Value;
use terminal::text::{Paint, clean};

pub(crate) async fn whoami(remote: &Remote) -> Result<CommandOutput, Failure> {
    let data: Value = remote.client().get("/v1/whoami").await?;
    let text = show::value(&data, Paint(false));
    Ok(CommandOutput { data, text })
}

pub(crate) async fn status(remote: &Remote, output: &Output) -> Result<CommandOutput, Failure> {
    let data: Value = remote.client().get("/v1/status").await?;
    let text = show::value(&data, output.paint());
    Ok(CommandOutput { data, text })
}

pub(crate) async fn cdp(remote: &Remote, globals: &Globals) -> Result<CommandOutput, Failure> {
    let session = verbs::session(globals)?;
    let path = format!("/v1/sessions/{}/cdp-address", encode(&session));
    let body = Some(bytes::Bytes::from_static(b"{}"));
    let data: Value = remote.client().json(Method::POST, &path, body).await?;
    let url = data["cdp_url"].as_str().ok_or_else(|| {
        Failure::local(terminal::Exit::Failure, "protocol", "the answer of cdp-address has no cdp_url")
    })?;
    let text = format!("{}\n", clean(url));
    Ok(CommandOutput { data, text })
}
