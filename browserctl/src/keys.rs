//! `browserctl key`.

use crate::args::IssueArgs;
use crate::output::{CommandOutput, Failure, Output};
use crate::remote::Remote;
use crate::show;
use bytes::Bytes;
use controlplane::client::encode;
use hyper::Method;
use serde_json::{Map, Value};
use terminal::text::clean;

pub(crate) async fn issue(remote: &Remote, args: IssueArgs) -> Result<CommandOutput, Failure> {
    let mut body = Map::new();
    body.insert("label".into(), args.label.into());
    if !args.scopes.is_empty() {
        body.insert("scopes".into(), args.scopes.into());
    }
    if let Some(expires) = args.expires {
        body.insert("expires_in_seconds".into(), expires.as_secs().into());
    }
    let body = Bytes::from(Value::Object(body).to_string());
    let issued: Value = remote.client().json(Method::POST, "/v1/keys", Some(body)).await?;
    // The key alone on standard output, so that it can be captured.
    let text = format!("{}\n", clean(issued["key"].as_str().unwrap_or_default()));
    Ok(CommandOutput { data: issued, text })
}

pub(crate) async fn list(remote: &Remote, output: &Output) -> Result<CommandOutput, Failure> {
    let keys: Value = remote.client().get("/v1/keys").await?;
    let text = show::value(&keys, output.paint());
    Ok(CommandOutput { data: keys, text })
}

pub(crate) async fn revoke(remote: &Remote, key: &str) -> Result<CommandOutput, Failure> {
    let path = format!("/v1/keys/{}", encode(key));
    let revoked: Value = remote.client().json(Method::DELETE, &path, None).await?;
    Ok(CommandOutput { data: revoked, text: format!("{} is revoked\n", clean(key)) })
}
