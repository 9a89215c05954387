//! Validation of parameters, and what a valid call is.

use super::types::*;
use crate::error::{ApiError, ErrorCode};
use crate::sessions::OpenSession;
use axum::http::Method;
use browserd::api::error::{ApiError as BrowserdError, ErrorDetail};
use browserd::api::types::{Action, Check};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A valid call.
pub(crate) struct Prepared {
    /// The parameters, to be redacted for the audit log.
    pub params: Value,
    pub work: Work,
}

/// What a call does.
pub(crate) enum Work {
    Open(OpenSession),
    Close,
    List(ListSessions),
    Show,
    Forward(Request),
    Upload { files: Vec<(String, Bytes)>, request: browserd::api::types::Upload },
    Download(GetDownload),
    PutFile { name: String, content: Bytes },
}

/// One request to browserd.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub method: Method,
    pub path: String,
    pub body: Bytes,
    /// The tab that the caller named.
    pub tab: Option<String>,
    /// The deadline that the caller asked for.
    pub timeout_ms: Option<u64>,
    /// Whether the answer has a picture beside its result.
    pub after_screenshot: bool,
}

pub(crate) fn bad(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::BadRequest, message)
}

/// browserd's refusal of a request, as its client would see it.
pub(crate) fn refused(error: BrowserdError) -> ApiError {
    ApiError::of_browserd(ErrorDetail {
        code: error.code,
        message: error.message,
        hint: error.code.hint().to_owned(),
        retryable: error.code.retryable(),
    })
}

/// Parameters from JSON. Messages never repeat a value: it may be a password.
pub(crate) fn params<T: DeserializeOwned>(text: &str) -> Result<T, ApiError> {
    let text = if text.trim().is_empty() { "{}" } else { text };
    // A derived type would also accept an array of its fields in order, and null.
    if !text.trim_start().starts_with('{') {
        return Err(bad("parameters: expected a JSON object"));
    }
    serde_json::from_str(text).map_err(|error| {
        let text = error.to_string();
        match error.classify() {
            // serde quotes values only in these messages.
            serde_json::error::Category::Data if text.starts_with("invalid") => bad(format!(
                "parameters: a field has the wrong type at line {} column {}",
                error.line(),
                error.column()
            )),
            serde_json::error::Category::Data if text.starts_with("unknown variant") => bad(format!(
                "parameters: a field has a value that it cannot have at line {} column {}",
                error.line(),
                error.column()
            )),
            _ => bad(format!("parameters: {text}")),
        }
    })
}

fn value(params: &impl Serialize) -> Result<Value, ApiError> {
    serde_json::to_value(params).map_err(|error| ApiError::new(ErrorCode::Internal, error.to_string()))
}

pub(crate) fn encode(body: &impl Serialize) -> Result<Bytes, ApiError> {
    serde_json::to_vec(body)
        .map(Bytes::from)
        .map_err(|error| ApiError::new(ErrorCode::Internal, error.to_string()))
}

/// A name that becomes a part of a path of browserd's API.
fn part(name: &str, text: &str) -> Result<(), ApiError> {
    let valid = !text.is_empty()
        && text.len() <= 64
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    if valid { Ok(()) } else { Err(bad(format!("{name}: not an id that the control plane returned"))) }
}

/// A verb whose parameters are, or become, a request of browserd on a tab.
pub(crate) fn on_tab<P, B>(path: &'static str, text: &str) -> Result<Prepared, ApiError>
where
    P: DeserializeOwned + Serialize + Into<B>,
    B: Serialize + Check + Action,
{
    let given: P = params(text)?;
    let params = value(&given)?;
    let body: B = given.into();
    body.check().map_err(refused)?;
    let request = Request {
        method: Method::POST,
        path: path.to_owned(),
        tab: body.tab().map(str::to_owned),
        timeout_ms: body.timeout_ms(),
        after_screenshot: body.after_screenshot(),
        body: encode(&body)?,
    };
    Ok(Prepared { params, work: Work::Forward(request) })
}

fn on_browser(
    params: Value,
    method: Method,
    path: String,
    body: Bytes,
    tab: Option<String>,
    timeout_ms: Option<u64>,
) -> Prepared {
    let request = Request { method, path, body, tab, timeout_ms, after_screenshot: false };
    Prepared { params, work: Work::Forward(request) }
}

/// A verb that reads something of the whole browser.
pub(crate) fn get(path: &'static str, text: &str) -> Result<Prepared, ApiError> {
    let given: Nothing = params(text)?;
    Ok(on_browser(value(&given)?, Method::GET, path.to_owned(), Bytes::new(), None, None))
}

pub(crate) fn new_tab(text: &str) -> Result<Prepared, ApiError> {
    let given: browserd::api::types::NewTab = params(text)?;
    given.check().map_err(refused)?;
    Ok(on_browser(value(&given)?, Method::POST, "/v1/tabs".into(), encode(&given)?, None, None))
}

pub(crate) fn events(text: &str) -> Result<Prepared, ApiError> {
    let given: browserd::api::types::Events = params(text)?;
    given.check().map_err(refused)?;
    let wait = given.wait_ms;
    Ok(on_browser(value(&given)?, Method::POST, "/v1/events".into(), encode(&given)?, None, wait))
}

pub(crate) fn close_tab(text: &str) -> Result<Prepared, ApiError> {
    let given: OneTab = params(text)?;
    part("tab", &given.tab)?;
    let path = format!("/v1/tabs/{}", given.tab);
    Ok(on_browser(value(&given)?, Method::DELETE, path, Bytes::new(), Some(given.tab), None))
}

pub(crate) fn activate_tab(text: &str) -> Result<Prepared, ApiError> {
    let given: OneTab = params(text)?;
    part("tab", &given.tab)?;
    let path = format!("/v1/tabs/{}/activate", given.tab);
    Ok(on_browser(value(&given)?, Method::POST, path, Bytes::from_static(b"{}"), Some(given.tab), None))
}

pub(crate) fn delete_download(text: &str) -> Result<Prepared, ApiError> {
    let given: OneDownload = params(text)?;
    part("guid", &given.guid)?;
    let path = format!("/v1/downloads/{}", given.guid);
    Ok(on_browser(value(&given)?, Method::DELETE, path, Bytes::new(), None, None))
}

pub(crate) fn delete_file(text: &str) -> Result<Prepared, ApiError> {
    let given: OneFile = params(text)?;
    part("file", &given.file)?;
    let path = format!("/v1/files/{}", given.file);
    Ok(on_browser(value(&given)?, Method::DELETE, path, Bytes::new(), None, None))
}

pub(crate) fn download(text: &str) -> Result<Prepared, ApiError> {
    let given: GetDownload = params(text)?;
    part("guid", &given.guid)?;
    Ok(Prepared { params: value(&given)?, work: Work::Download(given) })
}

fn content(name: &str, base64: &str) -> Result<Bytes, ApiError> {
    use base64::Engine;
    let decoded = base64::engine::general_purpose::STANDARD.decode(base64);
    decoded.map(Bytes::from).map_err(|_| bad(format!("{name}: not valid base64")))
}

/// A name that is one component of a path.
pub(crate) fn file_name(name: &str) -> Result<(), ApiError> {
    match name {
        "" | "." | ".." => Err(bad("name: give a file name, for example report.csv")),
        _ if name.len() > 255 => Err(bad("name: longer than 255 bytes")),
        _ if name.contains(['/', '\\']) => Err(bad("name: a file name without folders")),
        _ if name.chars().any(char::is_control) => Err(bad("name: it contains control characters")),
        _ => Ok(()),
    }
}

pub(crate) fn put_file(text: &str) -> Result<Prepared, ApiError> {
    let given: PutFile = params(text)?;
    file_name(&given.name)?;
    let params = value(&given)?;
    let content = content("content_base64", &given.content_base64)?;
    Ok(Prepared { params, work: Work::PutFile { name: given.name, content } })
}

pub(crate) fn upload(text: &str) -> Result<Prepared, ApiError> {
    let given: UploadFiles = params(text)?;
    let params = value(&given)?;
    let mut files = Vec::with_capacity(given.files.len());
    for file in &given.files {
        file_name(&file.name)?;
        files.push((file.name.clone(), content("files.content_base64", &file.content_base64)?));
    }
    let request: browserd::api::types::Upload = given.into();
    request.check().map_err(refused)?;
    Ok(Prepared { params, work: Work::Upload { files, request } })
}

pub(crate) fn open_session(text: &str) -> Result<Prepared, ApiError> {
    let given: OpenSession = params(text)?;
    Ok(Prepared { params: value(&given)?, work: Work::Open(given) })
}

pub(crate) fn close_session(text: &str) -> Result<Prepared, ApiError> {
    params::<Nothing>(text)?;
    Ok(Prepared { params: Value::Object(Default::default()), work: Work::Close })
}

pub(crate) fn show_session(text: &str) -> Result<Prepared, ApiError> {
    params::<Nothing>(text)?;
    Ok(Prepared { params: Value::Object(Default::default()), work: Work::Show })
}

pub(crate) fn list_sessions(text: &str) -> Result<Prepared, ApiError> {
    let given: ListSessions = params(text)?;
    if given.limit.is_some_and(|limit| !(1..=1000).contains(&limit)) {
        return Err(bad("limit: must be from 1 to 1000"));
    }
    Ok(Prepared { params: value(&given)?, work: Work::List(given) })
}
