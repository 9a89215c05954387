//! How a verb is carried out: validate, authorise, audit, forward, record, outcome.

use super::parse::{self, Prepared, Request, Work};
use super::{Pictures, Verb};
use crate::access::{Caller, Scope};
use crate::actions::types::*;
use crate::app::{App, CallOptions, CdpTarget, FileStream};
use crate::audit::{Begun, Entry};
use crate::error::{ApiError, ErrorCode};
use crate::recording::NewPicture;
use crate::sessions::browser::{Answer, NoAnswer, RequestBody, parts, whole};
use crate::sessions::live::Live;
use crate::sessions::{CredentialMode, Entered, OpenSession, Record, Sessions};
use axum::http::{Method, StatusCode};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

/// browserd's default and longest deadline of a call.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_TIMEOUT: Duration = Duration::from_secs(300);
/// browserd keeps its deadlines itself. It gets so much longer to say so before the control plane does.
const GRACE: Duration = Duration::from_secs(5);
/// How long the bytes of a file may take, on top.
const FILE_TIMEOUT: Duration = Duration::from_secs(300);
/// The key of calls that name no tab, in the order of calls.
const ACTIVE_TAB: &str = "";

const JSON: &str = "application/json";
const BYTES: &str = "application/octet-stream";

fn internal(error: impl std::fmt::Display) -> ApiError {
    ApiError::new(ErrorCode::Internal, error.to_string())
}

fn answer(result: &impl Serialize) -> Result<Box<RawValue>, ApiError> {
    serde_json::value::to_raw_value(result).map_err(internal)
}

fn forbidden(caller: &Caller, scope: Scope) -> Result<(), ApiError> {
    if caller.may(scope) {
        return Ok(());
    }
    let message =
        format!("this call needs the scope {}, which {} does not have", scope.word(), caller.name());
    Err(ApiError::new(ErrorCode::Forbidden, message))
}

/// End an audited call with its result.
fn ended<T>(begun: Begun, result: Result<T, ApiError>) -> Result<T, ApiError> {
    begun.end(result.as_ref().map(drop));
    result
}

pub(crate) async fn call(
    app: &App,
    caller: &Caller,
    verb: &'static Verb,
    options: CallOptions,
    params: &str,
) -> Result<Box<RawValue>, ApiError> {
    forbidden(caller, verb.scope)?;
    let Prepared { params, work } = (verb.prepare)(params)?;
    let session = || {
        options.session.as_deref().ok_or_else(|| ApiError::new(ErrorCode::BadRequest, "session_id: missing"))
    };
    match work {
        Work::Open(wanted) => {
            open(app, caller, verb, wanted, options.idempotency_key.as_deref(), &params).await
        }
        Work::Close => close(app, caller, verb, session()?).await,
        // Reading the own list is no action.
        Work::List(list) => {
            let limit = list.limit.unwrap_or(100);
            answer(&SessionList { sessions: app.sessions.list(caller, list.all, limit, list.before).await? })
        }
        Work::Show => answer(&app.sessions.show(caller, session()?).await?),
        Work::Forward(request) => {
            let tab = (verb.target == super::Target::Tab || request.tab.is_some())
                .then(|| request.tab.clone().unwrap_or_else(|| ACTIVE_TAB.into()));
            let pictures = match verb.pictures {
                Pictures::After if !request.after_screenshot => Pictures::None,
                pictures => pictures,
            };
            let wait = deadline(request.timeout_ms);
            act(app, caller, verb, session()?, &params, tab.as_deref(), wait, async |entered| {
                forward(app, entered, verb, pictures, request).await
            })
            .await
        }
        Work::Download(wanted) => {
            act(app, caller, verb, session()?, &params, None, FILE_TIMEOUT, async |entered| {
                let (file, reply) = fetch(entered, &wanted).await?;
                let content = reply.read().await.map_err(|error| unreachable_browser(entered, app, error))?;
                answer(&DownloadedFile {
                    guid: wanted.guid,
                    name: file.name,
                    mime_type: file.mime_type,
                    bytes: content.len() as u64,
                    content_base64: STANDARD.encode(content),
                })
            })
            .await
        }
        Work::PutFile { name, content } => {
            act(app, caller, verb, session()?, &params, None, FILE_TIMEOUT, async |entered| {
                text(put(app, entered, &name, whole(content)).await?)
            })
            .await
        }
        Work::Upload { files, request } => {
            let tab = request.tab.clone().unwrap_or_else(|| ACTIVE_TAB.into());
            let pictures = if request.after_screenshot { Pictures::After } else { Pictures::None };
            act(app, caller, verb, session()?, &params, Some(&tab), FILE_TIMEOUT, async |entered| {
                let mut request = request;
                for (name, content) in files {
                    let put = put(app, entered, &name, whole(content)).await?;
                    let file: FileInSession = serde_json::from_slice(&put).map_err(malformed)?;
                    request.files.push(file.file);
                }
                let request = Request {
                    method: Method::POST,
                    path: "/v1/upload".into(),
                    tab: None,
                    timeout_ms: request.timeout_ms,
                    after_screenshot: request.after_screenshot,
                    body: parse::encode(&request)?,
                };
                forward(app, entered, verb, pictures, request).await
            })
            .await
        }
    }
}

async fn open(
    app: &App,
    caller: &Caller,
    verb: &Verb,
    wanted: OpenSession,
    key: Option<&str>,
    params: &Value,
) -> Result<Box<RawValue>, ApiError> {
    app.sessions.check(&wanted)?;
    let mut begun = app.audit.begin(Entry::of(caller, verb.name, None, verb.redacted(params))).await?;
    let opened = app.sessions.open(caller, wanted, key).await;
    if let Ok(view) = &opened {
        begun.set_session(&view.session_id);
    }
    answer(&ended(begun, opened)?)
}

/// A close goes on although the log cannot be written; the row is written when it can be.
async fn close(app: &App, caller: &Caller, verb: &Verb, session: &str) -> Result<Box<RawValue>, ApiError> {
    let view = app.sessions.show(caller, session).await?;
    let entry = Entry::of(caller, verb.name, Some(&view.session_id), json!({}));
    let audited = app.audit.begin_always(entry);
    let (begun, closed) = tokio::join!(audited, app.sessions.close(caller, session));
    answer(&ended(begun, closed)?)
}

fn deadline(asked: Option<u64>) -> Duration {
    asked.map_or(DEFAULT_TIMEOUT, Duration::from_millis).min(MAX_TIMEOUT)
}

/// One audited call in a session. Nothing is forwarded before the row is committed. It ends when its deadline passes, or the
/// session ends; dropping it cancels the call.
#[allow(clippy::too_many_arguments)]
async fn act<F>(
    app: &App,
    caller: &Caller,
    verb: &Verb,
    session: &str,
    params: &Value,
    tab: Option<&str>,
    wait: Duration,
    work: F,
) -> Result<Box<RawValue>, ApiError>
where
    F: AsyncFnOnce(&Entered) -> Result<Box<RawValue>, ApiError>,
{
    let entered = app.sessions.enter(caller, session).await?;
    allowed(&entered, verb)?;
    if verb.pictures != Pictures::None && entered.live.record == Record::Audit {
        // Before the action: one whose picture cannot be recorded is not done at all.
        app.recordings.check_quota()?;
    }
    let turn = until(&entered, wait, entered.live.turn(tab)).await?;
    let begun =
        app.audit.begin(Entry::of(caller, verb.name, Some(entered.id()), verb.redacted(params))).await?;
    let result = until(&entered, wait + GRACE, work(&entered)).await;
    drop(turn);
    ended(begun, result)
}

/// What a session with logins does not allow.
fn allowed(entered: &Entered, verb: &Verb) -> Result<(), ApiError> {
    let refused = matches!(verb.scope, Scope::Evaluate | Scope::Files | Scope::Cdp);
    if entered.live.credential_mode == CredentialMode::Operator && refused {
        let message = format!("{} is not possible in a session with credential_mode operator", verb.name);
        return Err(ApiError::new(ErrorCode::NotAllowedInSession, message));
    }
    Ok(())
}

async fn until<T>(
    entered: &Entered,
    wait: Duration,
    work: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    tokio::select! {
        biased;
        result = work => result.map_err(|error| Sessions::ended(&entered.live).unwrap_or(error)),
        gone = entered.closed() => Err(gone),
        () = tokio::time::sleep(wait) => {
            let message = format!("session {} did not answer within {} ms", entered.id(), wait.as_millis());
            Err(ApiError::new(ErrorCode::Timeout, message))
        }
    }
}

/// browserd cannot be reached. The keeper looks whether the clone is gone.
fn unreachable_browser(entered: &Entered, app: &App, error: NoAnswer) -> ApiError {
    match &error {
        NoAnswer::Connect(_) | NoAnswer::Broken(_) => app.sessions.suspect(&entered.live),
        NoAnswer::Invalid(_) => {}
    }
    let message = format!("the browser service of session {} does not answer: {error}", entered.id());
    ApiError::new(ErrorCode::BrowserUnavailable, message).retry_after(Duration::from_secs(1))
}

fn malformed(error: impl std::fmt::Display) -> ApiError {
    ApiError::new(
        ErrorCode::BrowserUnavailable,
        format!("the browser service's answer is not valid: {error}"),
    )
}

/// browserd's error, with its code and hint. Its texts come from a clone, so they are bounded.
fn error_of(status: StatusCode, body: &[u8]) -> ApiError {
    let parsed: Result<browserd::api::error::ErrorBody, _> = serde_json::from_slice(body);
    match parsed {
        Err(_) => malformed(format!("status {status} without an error")),
        Ok(parsed) => {
            let mut error = parsed.error;
            let code = error.code;
            if code == browserd::api::error::ErrorCode::Unauthorized {
                return malformed("it refuses the secret of its clone");
            }
            error.message =
                error.message.chars().filter(|c| !c.is_control() || *c == '\n').take(4000).collect();
            error.hint = code.hint().to_owned();
            error.retryable = code.retryable();
            ApiError::of_browserd(error)
        }
    }
}

async fn send(
    app: &App,
    entered: &Entered,
    method: Method,
    path: &str,
    kind: &'static str,
    body: RequestBody,
) -> Result<Answer, ApiError> {
    let browser = entered.browser()?;
    browser.send(method, path, kind, body).await.map_err(|error| unreachable_browser(entered, app, error))
}

async fn forward(
    app: &App,
    entered: &Entered,
    verb: &Verb,
    pictures: Pictures,
    request: Request,
) -> Result<Box<RawValue>, ApiError> {
    let reply = send(app, entered, request.method, &request.path, JSON, whole(request.body)).await?;
    let status = reply.status();
    let mut body = reply.read().await.map_err(|error| unreachable_browser(entered, app, error))?;
    if !status.is_success() {
        return Err(error_of(status, &body));
    }
    if pictures != Pictures::None {
        record(app, &entered.live, verb, pictures, &mut body).await?;
    }
    text(body)
}

/// The JSON of an answer, without another copy.
fn text(body: Vec<u8>) -> Result<Box<RawValue>, ApiError> {
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(malformed("it is no JSON object"));
    }
    let text = String::from_utf8(body).map_err(malformed)?;
    RawValue::from_string(text).map_err(malformed)
}

/// A picture in an answer, without copying it.
#[derive(Deserialize)]
struct Picture<'a> {
    #[serde(borrow)]
    image_base64: &'a str,
    format: browserd::api::types::ImageFormat,
    width: u32,
    height: u32,
    captured_at: u64,
}

#[derive(Deserialize)]
struct WithPicture<'a> {
    #[serde(borrow)]
    after_screenshot: Option<&'a RawValue>,
}

/// Record the picture of an answer, and write into the answer where it is.
async fn record(
    app: &App,
    live: &Live,
    verb: &Verb,
    pictures: Pictures,
    body: &mut Vec<u8>,
) -> Result<(), ApiError> {
    if live.record == Record::Off {
        return Ok(());
    }
    let json = std::str::from_utf8(body).map_err(malformed)?;
    let (picture, end) = match pictures {
        Pictures::None => return Ok(()),
        Pictures::Result => (json, json.trim_end().len() - 1),
        Pictures::After => {
            let result: WithPicture<'_> = serde_json::from_str(json).map_err(malformed)?;
            let Some(picture) = result.after_screenshot else { return Ok(()) };
            let begin = picture.get().as_ptr() as usize - json.as_ptr() as usize;
            (picture.get(), begin + picture.get().len() - 1)
        }
    };
    let parsed: Picture<'_> = serde_json::from_str(picture).map_err(malformed)?;
    let new = NewPicture {
        bytes: STANDARD.decode(parsed.image_base64).map_err(malformed)?,
        format: match parsed.format {
            browserd::api::types::ImageFormat::Png => "png",
            browserd::api::types::ImageFormat::Jpeg => "jpeg",
            browserd::api::types::ImageFormat::Webp => "webp",
        },
        width: parsed.width,
        height: parsed.height,
        captured_at: i64::try_from(parsed.captured_at).unwrap_or(0),
        verb: verb.name,
    };
    let path: Option<PathBuf> = match live.record {
        Record::Off => None,
        Record::Transient => app.recordings.save_later(&live.tenant, &live.id, new).await,
        Record::Audit => Some(app.recordings.save(&live.tenant, &live.id, new).await?),
    };
    if let Some(path) = path {
        let path = serde_json::to_string(&path).map_err(internal)?;
        // Before the closing brace of the picture.
        body.splice(end..end, format!(",\"persisted_path\":{path}").into_bytes());
    }
    Ok(())
}

/// What a download is, from browserd's list.
struct FileInfo {
    name: String,
    mime_type: String,
    bytes: u64,
}

async fn fetch(entered: &Entered, wanted: &GetDownload) -> Result<(FileInfo, Answer), ApiError> {
    let browser = entered.browser()?;
    let failed = |error: NoAnswer| {
        let message = format!("the browser service of session {} does not answer: {error}", entered.id());
        ApiError::new(ErrorCode::BrowserUnavailable, message)
    };
    let list = browser.send(Method::GET, "/v1/downloads", JSON, whole(Bytes::new())).await.map_err(failed)?;
    let status = list.status();
    let list = list.read().await.map_err(failed)?;
    if !status.is_success() {
        return Err(error_of(status, &list));
    }
    let list: browserd::api::types::Downloads = serde_json::from_slice(&list).map_err(malformed)?;
    let path = format!("/v1/downloads/{}?delete={}", wanted.guid, wanted.delete);
    let reply = browser.send(Method::GET, &path, JSON, whole(Bytes::new())).await.map_err(failed)?;
    let status = reply.status();
    if !status.is_success() {
        return Err(error_of(status, &reply.read().await.map_err(failed)?));
    }
    let known = list.downloads.into_iter().find(|download| download.guid == wanted.guid);
    let mime_type = reply.header("content-type").unwrap_or(BYTES).to_owned();
    let name = known.map_or_else(|| wanted.guid.clone(), |download| download.suggested_filename);
    let bytes = reply.length().unwrap_or(0);
    Ok((FileInfo { name, mime_type, bytes }, reply))
}

async fn put(app: &App, entered: &Entered, name: &str, body: RequestBody) -> Result<Vec<u8>, ApiError> {
    let encoded: String = name.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let reply = send(app, entered, Method::POST, &format!("/v1/files?name={encoded}"), BYTES, body).await?;
    let status = reply.status();
    let body = reply.read().await.map_err(|error| unreachable_browser(entered, app, error))?;
    if status.is_success() { Ok(body) } else { Err(error_of(status, &body)) }
}

fn named(name: &str) -> Result<&'static Verb, ApiError> {
    super::verb(name).ok_or_else(|| internal(format!("there is no verb {name}")))
}

pub(crate) async fn download(
    app: &App,
    caller: &Caller,
    session: &str,
    guid: &str,
    delete: bool,
) -> Result<FileStream, ApiError> {
    let verb = named("download")?;
    forbidden(caller, verb.scope)?;
    let wanted = json!({ "guid": guid, "delete": delete });
    let Prepared { params, work } = (verb.prepare)(&wanted.to_string())?;
    let Work::Download(wanted) = work else { return Err(internal("download is another verb")) };
    let entered = app.sessions.enter(caller, session).await?;
    allowed(&entered, verb)?;
    let begun =
        app.audit.begin(Entry::of(caller, verb.name, Some(entered.id()), verb.redacted(&params))).await?;
    let (file, reply) = match until(&entered, DEFAULT_TIMEOUT, fetch(&entered, &wanted)).await {
        Ok(fetched) => fetched,
        Err(error) => return ended(begun, Err(error)),
    };
    // The outcome is written when the last byte was sent, and `cancelled` if the reader goes away before.
    let content = futures_util::stream::unfold(
        (reply.stream(), Some((begun, entered))),
        |(mut bytes, used)| async move {
            let (begun, entered) = used?;
            match bytes.next().await {
                Some(Ok(part)) => Some((Ok(part), (bytes, Some((begun, entered))))),
                Some(Err(error)) => {
                    let error = malformed(error);
                    begun.end(Err(&error));
                    Some((Err(error), (bytes, None)))
                }
                None => {
                    begun.end(Ok(()));
                    None
                }
            }
        },
    );
    Ok(FileStream { name: file.name, mime_type: file.mime_type, bytes: file.bytes, content: content.boxed() })
}

pub(crate) async fn put_file(
    app: &App,
    caller: &Caller,
    session: &str,
    name: &str,
    content: BoxStream<'static, Result<Bytes, ApiError>>,
) -> Result<Box<RawValue>, ApiError> {
    let verb = named("put_file")?;
    forbidden(caller, verb.scope)?;
    parse::file_name(name)?;
    act(app, caller, verb, session, &json!({ "name": name }), None, FILE_TIMEOUT, async |entered| {
        text(put(app, entered, name, parts(content)).await?)
    })
    .await
}

pub(crate) async fn cdp(app: &App, caller: &Caller, session: &str) -> Result<CdpTarget, ApiError> {
    forbidden(caller, Scope::Cdp)?;
    let entered = app.sessions.enter(caller, session).await?;
    if entered.live.credential_mode == CredentialMode::Operator {
        let message = "raw CDP is not possible in a session with credential_mode operator";
        return Err(ApiError::new(ErrorCode::NotAllowedInSession, message));
    }
    let begun = app.audit.begin(Entry::of(caller, "cdp", Some(entered.id()), json!({}))).await?;
    let place = {
        let place = entered.live.place();
        place
            .browser
            .as_ref()
            .map(|browser| browser.address)
            .zip(place.cdp_path.as_ref().map(|path| path.0.clone()))
    };
    match place {
        Some((address, path)) => Ok(CdpTarget::new(address, path, entered, begun)),
        None => {
            let message = format!("session {session} has no raw CDP");
            ended(begun, Err(ApiError::new(ErrorCode::BrowserUnavailable, message)))
        }
    }
}
