//! The table of operations. Routing, request validation and the OpenAPI document are all derived from it.

use super::error::{ApiError, ErrorCode};
use super::types::*;
use crate::browser::actions::{
    Context, capture, cookies, find, keyboard, navigate, pointer, read, records, snapshot, upload, wait,
};
use crate::browser::supervisor::Phase;
use crate::server::App;
use crate::transfer::OutgoingFile;
use hyper::body::Incoming;
use hyper::{Method, StatusCode};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::time::Instant;

/// A successful response.
#[derive(Debug)]
pub(crate) struct OperationResponse {
    pub(crate) status: StatusCode,
    pub(crate) body: ResponseBody,
}

#[derive(Debug)]
pub(crate) enum ResponseBody {
    Json(Vec<u8>),
    File(OutgoingFile),
}

/// What the body of a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyKind {
    /// There is none.
    None,
    /// JSON, bounded by `--max-request`.
    Json,
    /// The bytes of a file.
    Bytes,
}

/// A call as the server routed it.
pub(crate) struct Arrived {
    pub(crate) app: Arc<App>,
    /// The variable part of the path.
    pub(crate) part: Option<String>,
    pub(crate) query: String,
    pub(crate) body: ArrivedBody,
}

pub(crate) enum ArrivedBody {
    Json(Vec<u8>),
    Bytes(Incoming),
}

type ResponseFuture = Pin<Box<dyn Future<Output = Result<OperationResponse, ApiError>> + Send>>;
type Handler = Box<dyn Fn(Arrived) -> ResponseFuture + Send + Sync>;

/// One operation of the API.
pub struct Operation {
    /// GET, POST or DELETE.
    pub method: Method,
    /// The path; `{tab}`, `{guid}` or `{file}` stands for an id.
    pub path: &'static str,
    /// A unique name.
    pub id: &'static str,
    /// One line.
    pub summary: &'static str,
    /// The body of the request.
    pub body: BodyKind,
    /// Whether the response is a file instead of JSON.
    pub sends_file: bool,
    /// The parameters of the query: name, whether it is required, description.
    pub query: &'static [(&'static str, bool, &'static str)],
    /// Whether it needs no secret. Only the two probes, which say yes or no.
    pub public: bool,
    /// Whether it counts against the limit of concurrent calls. The probes and the state do not: they must always respond.
    pub(crate) counted: bool,
    pub(crate) request_schema: fn(&mut SchemaGenerator) -> Schema,
    pub(crate) response_schema: fn(&mut SchemaGenerator) -> Schema,
    check: fn(&[u8]) -> Result<(), ApiError>,
    pub(crate) run: Handler,
}

impl std::fmt::Debug for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

impl Operation {
    /// Validates a body without executing the operation.
    pub fn check(&self, body: &[u8]) -> Result<(), ApiError> {
        (self.check)(body)
    }

    /// The path before and after its variable part, whose name is in the middle.
    pub(crate) fn variable(&self) -> Option<(&'static str, &'static str, &'static str)> {
        let (before, rest) = self.path.split_once('{')?;
        let (name, after) = rest.split_once('}')?;
        Some((before, name, after))
    }

    /// Matches a path. The inner option is its variable part.
    pub(crate) fn matches<'a>(&self, path: &'a str) -> Option<Option<&'a str>> {
        match self.variable() {
            None => (self.path == path).then_some(None),
            Some((before, _, after)) => {
                let part = path.strip_prefix(before)?.strip_suffix(after)?;
                (!part.is_empty() && !part.contains('/')).then_some(Some(part))
            }
        }
    }
}

fn parse<T: DeserializeOwned + Check>(body: &[u8]) -> Result<T, ApiError> {
    let body = if body.is_empty() { b"{}" } else { body };
    // serde would also accept an array of the struct's fields in order.
    if body.trim_ascii_start().first() == Some(&b'[') {
        return Err(ApiError::new(ErrorCode::BadRequest, "body: expected a JSON object"));
    }
    // The message must not contain values, because a body may contain cookies. serde quotes values only in messages
    // that start with "invalid".
    let request: T = serde_json::from_slice(body).map_err(|error| {
        let text = error.to_string();
        let safe = match error.classify() {
            serde_json::error::Category::Data if text.starts_with("invalid") => {
                format!("a field has the wrong type at line {} column {}", error.line(), error.column())
            }
            _ => text,
        };
        ApiError::new(ErrorCode::BadRequest, format!("body: {safe}"))
    })?;
    request.check()?;
    Ok(request)
}

fn respond(status: StatusCode, value: &impl Serialize) -> Result<OperationResponse, ApiError> {
    let json =
        serde_json::to_vec(value).map_err(|error| ApiError::new(ErrorCode::Internal, error.to_string()))?;
    Ok(OperationResponse { status, body: ResponseBody::Json(json) })
}

/// The values of the query's parameters. Refuses unknown and repeated ones.
fn query_values<const N: usize>(query: &str, known: [&str; N]) -> Result<[Option<String>; N], ApiError> {
    let bad = |message: String| ApiError::new(ErrorCode::BadRequest, message);
    let mut values = [const { None }; N];
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let at = known.iter().position(|known| *known == name);
        let at = at.ok_or_else(|| {
            bad(format!("the query has an unknown parameter; it may have {}", known.join(", ")))
        })?;
        let value = percent_decode(value)
            .ok_or_else(|| bad(format!("{name}: not valid percent-encoding of UTF-8")))?;
        if values[at].replace(value).is_some() {
            return Err(bad(format!("{name}: given twice")));
        }
    }
    Ok(values)
}

pub(crate) fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        match first {
            b'%' => {
                let (digits, tail) = rest.split_at_checked(2)?;
                let digits = std::str::from_utf8(digits).ok().filter(|text| !text.starts_with('+'))?;
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
                rest = tail;
            }
            b'+' => bytes.push(b' '),
            byte => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).ok()
}

/// The input of a handler.
struct Call<T> {
    app: Arc<App>,
    /// The variable part of the path.
    part: Option<String>,
    request: T,
}

fn operation<T, R, F>(
    method: Method,
    path: &'static str,
    id: &'static str,
    summary: &'static str,
    handler: fn(Call<T>) -> F,
) -> Operation
where
    T: DeserializeOwned + JsonSchema + Check + Send + 'static,
    R: Serialize + JsonSchema,
    F: Future<Output = Result<(StatusCode, R), ApiError>> + Send + 'static,
{
    let body = if method == Method::POST { BodyKind::Json } else { BodyKind::None };
    Operation {
        method,
        path,
        id,
        summary,
        body,
        sends_file: false,
        query: &[],
        public: false,
        counted: true,
        request_schema: |generator| generator.subschema_for::<T>(),
        response_schema: |generator| generator.subschema_for::<R>(),
        check: |body| parse::<T>(body).map(drop),
        run: Box::new(move |arrived| {
            Box::pin(async move {
                let Arrived { app, part, body, .. } = arrived;
                let request = match body {
                    ArrivedBody::Json(body) => parse::<T>(&body)?,
                    ArrivedBody::Bytes(_) => parse::<T>(b"")?,
                };
                let (status, value) = handler(Call { app, part, request }).await?;
                respond(status, &value)
            })
        }),
    }
}

/// Puts a file into the clone.
fn receive_file() -> Operation {
    Operation {
        body: BodyKind::Bytes,
        query: &[("name", true, "The file's name, percent-encoded.")],
        run: Box::new(|Arrived { app, query, body, .. }| {
            Box::pin(async move {
                let [name] = query_values(&query, ["name"])?;
                let name = name.ok_or_else(|| ApiError::new(ErrorCode::BadRequest, "name: missing"))?;
                let ArrivedBody::Bytes(body) = body else {
                    return Err(ApiError::new(ErrorCode::BadRequest, "send the file's bytes"));
                };
                respond(StatusCode::CREATED, &app.files.receive(&name, body).await?)
            })
        }),
        ..operation(
            Method::POST,
            "/v1/files",
            "put_file",
            "Put a file into the clone, for upload and for file inputs",
            |_: Call<Nothing>| async move {
                Err::<(StatusCode, ClientFile), _>(ApiError::new(ErrorCode::Internal, "handled by `run`"))
            },
        )
    }
}

/// Sends a finished download.
fn send_download() -> Operation {
    Operation {
        sends_file: true,
        query: &[("delete", false, "`true`: remove the file when all of it was sent.")],
        run: Box::new(|Arrived { app, part, query, .. }| {
            Box::pin(async move {
                let [delete] = query_values(&query, ["delete"])?;
                let delete = match delete.as_deref() {
                    None | Some("false") => false,
                    Some("true") => true,
                    Some(_) => return Err(ApiError::new(ErrorCode::BadRequest, "delete: true or false")),
                };
                let file = app.browser()?.download_file(&part.unwrap_or_default(), delete).await?;
                Ok(OperationResponse { status: StatusCode::OK, body: ResponseBody::File(file) })
            })
        }),
        ..operation(
            Method::GET,
            "/v1/downloads/{guid}",
            "get_download",
            "The bytes of a finished download",
            |_: Call<Nothing>| async move {
                Err::<(StatusCode, Nothing), _>(ApiError::new(ErrorCode::Internal, "handled by `run`"))
            },
        )
    }
}

/// An operation whose request is an action on a tab.
macro_rules! action {
    ($path:literal, $id:literal, $summary:literal, $request:ty => $handler:path) => {
        operation(Method::POST, $path, $id, $summary, |call: Call<$request>| async move {
            let browser = call.app.browser()?;
            if call.request.tab.is_none() && browser.tab(None).is_err() {
                // No tab is open and the call names none, so one is opened.
                let until = Instant::now() + call.app.config.deadline(call.request.timeout_ms);
                browser.open_tab(None, false, until).await?;
            }
            let context = Context::new(browser, call.app.config.clone(), &call.request)?;
            context.tab.record().await;
            Ok((StatusCode::OK, $handler(&context, &call.request).await?))
        })
    };
}

fn until(app: &App) -> Instant {
    Instant::now() + app.config.deadline(None)
}

fn done() -> (StatusCode, Done) {
    (StatusCode::OK, Done { success: true })
}

/// The response of a probe.
fn yes_or_no(success: bool) -> (StatusCode, Done) {
    let status = if success { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Done { success })
}

fn health(app: &App) -> Health {
    let status = app.supervisor.status();
    let browser = app.supervisor.browser();
    Health {
        status: status.phase.as_str().into(),
        browser_pid: status.pid,
        restarts: status.restarts,
        last_exit: status.last_exit,
        renderer_crashes: app.supervisor.continuity.renderer_crashes.load(Ordering::Relaxed),
        browser_generation: app.supervisor.continuity.generation(),
        tabs: browser.as_ref().map_or(0, |browser| browser.tab_count()),
        calls: app.running_calls(),
        raw_clients: browser.as_ref().map_or(0, |browser| browser.relays().clients()),
    }
}

/// Every operation.
pub fn operations() -> Vec<Operation> {
    let uncounted = |operation: Operation| Operation { counted: false, ..operation };
    let probe = |operation: Operation| Operation { public: true, ..uncounted(operation) };
    vec![
        probe(operation(
            Method::GET,
            "/healthz",
            "healthz",
            "Whether browserd works; 503 once the browser crashed too often and is no longer restarted",
            |call: Call<Nothing>| async move {
                Ok(yes_or_no(call.app.supervisor.status().phase != Phase::Failed))
            },
        )),
        probe(operation(
            Method::GET,
            "/readyz",
            "readyz",
            "Whether pages can be opened; 503 until then",
            |call: Call<Nothing>| async move { Ok(yes_or_no(call.app.supervisor.status().phase == Phase::Ready)) },
        )),
        uncounted(operation(
            Method::GET,
            "/v1/health",
            "health",
            "The state of browserd and of the browser",
            |call: Call<Nothing>| async move { Ok((StatusCode::OK, health(&call.app))) },
        )),
        operation(
            Method::GET,
            "/v1/version",
            "version",
            "The versions of browserd and of the browser",
            |call: Call<Nothing>| async move {
                let version = call.app.browser()?.version.clone();
                Ok((
                    StatusCode::OK,
                    Version {
                        browserd: env!("CARGO_PKG_VERSION").into(),
                        browser: version.product,
                        protocol: version.protocol_version,
                        user_agent: version.user_agent,
                        evaluate: !call.app.config.no_evaluate,
                        raw_cdp: !call.app.config.no_raw_cdp,
                    },
                ))
            },
        ),
        operation(Method::GET, "/v1/tabs", "list_tabs", "All open tabs", |call: Call<Nothing>| async move {
            let tabs = call.app.browser()?.tab_infos().await?;
            let browser_generation = call.app.supervisor.continuity.generation();
            Ok((StatusCode::OK, Tabs { tabs, browser_generation }))
        }),
        operation(Method::POST, "/v1/tabs", "open_tab", "Open a tab", |call: Call<NewTab>| async move {
            let browser = call.app.browser()?;
            let NewTab { url, background } = call.request;
            let tab = browser.open_tab(url.as_deref(), background, until(&call.app)).await?;
            let info = browser.tab_infos().await?.into_iter().find(|info| info.tab == tab.id);
            let info =
                info.ok_or_else(|| ApiError::new(ErrorCode::NoSuchTab, "the new tab was closed at once"))?;
            Ok((StatusCode::CREATED, info))
        }),
        operation(
            Method::DELETE,
            "/v1/tabs/{tab}",
            "close_tab",
            "Close a tab",
            |call: Call<Nothing>| async move {
                call.app.browser()?.close_tab(&call.part.unwrap_or_default()).await?;
                Ok(done())
            },
        ),
        operation(
            Method::POST,
            "/v1/tabs/{tab}/activate",
            "activate_tab",
            "Make a tab the default for calls that name no tab",
            |call: Call<Nothing>| async move {
                call.app.browser()?.activate_tab(&call.part.unwrap_or_default()).await?;
                Ok(done())
            },
        ),
        action!("/v1/navigate", "navigate", "Load a URL or navigate the history", Navigate => navigate::navigate),
        action!("/v1/screenshot", "screenshot", "Take a screenshot", Screenshot => capture::screenshot),
        action!("/v1/click", "click", "Click a point or an element", Click => pointer::click),
        action!("/v1/hover", "hover", "Move the pointer over a point or an element", Hover => pointer::hover),
        action!("/v1/drag", "drag", "Drag from one place to another", Drag => pointer::drag),
        action!("/v1/mouse", "mouse", "Move the mouse, or press or release a button", Mouse => pointer::mouse),
        action!("/v1/type", "type", "Type text", Type => keyboard::type_text),
        action!("/v1/press", "press", "Press a key or a key combination", Press => keyboard::press),
        action!("/v1/set_value", "set_value", "Set the value of a form control", SetValue => keyboard::set_value),
        action!("/v1/scroll", "scroll", "Scroll by a distance or to an element", Scroll => pointer::scroll),
        action!("/v1/wait_for", "wait_for", "Wait for an element, a text, a URL or a state of loading", WaitFor => wait::wait_for),
        action!("/v1/url", "url", "The tab's URL, title and whether it is loading", Url => records::url),
        action!("/v1/read_dom", "read_dom", "The page as HTML", ReadDom => read::read_dom),
        action!("/v1/text", "text", "The page's text", Text => read::text),
        action!("/v1/links", "links", "The page's links", Links => read::links),
        action!("/v1/snapshot", "snapshot", "The accessibility tree with refs", Snapshot => snapshot::snapshot),
        action!("/v1/find", "find", "Find elements by text, role or placeholder", Find => find::find),
        action!("/v1/console", "console", "The tab's console messages and uncaught exceptions", Console => records::console),
        action!("/v1/network", "network", "The tab's network requests, without headers and bodies", Network => records::network),
        action!("/v1/pdf", "pdf", "Print to PDF", Pdf => capture::pdf),
        operation(
            Method::POST,
            "/v1/evaluate",
            "evaluate",
            "Evaluate JavaScript in the page",
            |call: Call<Evaluate>| async move {
                if call.app.config.no_evaluate {
                    return Err(ApiError::new(ErrorCode::EvaluateDisabled, "evaluate is disabled"));
                }
                let context = Context::new(call.app.browser()?, call.app.config.clone(), &call.request)?;
                context.tab.record().await;
                Ok((StatusCode::OK, read::evaluate(&context, &call.request).await?))
            },
        ),
        operation(
            Method::POST,
            "/v1/dialogs",
            "dialogs",
            "Set how the tab's dialogs are answered",
            |call: Call<Dialogs>| async move {
                let Dialogs { accept, prompt_text, tab, .. } = call.request;
                call.app.browser()?.tab(tab.as_deref())?.update(|state| {
                    (state.accept_dialogs, state.prompt_text) = (accept, prompt_text);
                });
                Ok(done())
            },
        ),
        operation(
            Method::GET,
            "/v1/dialogs",
            "recent_dialogs",
            "The last dialogs of all tabs",
            |call: Call<Nothing>| async move {
                Ok((StatusCode::OK, RecentDialogs { dialogs: call.app.browser()?.dialogs() }))
            },
        ),
        operation(
            Method::POST,
            "/v1/events",
            "events",
            "What happened in the browser, also before its last restart",
            |call: Call<Events>| async move {
                let until = Instant::now() + call.app.config.deadline(call.request.wait_ms);
                Ok((StatusCode::OK, call.app.supervisor.continuity.read(&call.request, until).await))
            },
        ),
        operation(
            Method::GET,
            "/v1/cookies",
            "get_cookies",
            "All cookies",
            |call: Call<Nothing>| async move {
                Ok((StatusCode::OK, cookies::get(&*call.app.browser()?, until(&call.app)).await?))
            },
        ),
        operation(
            Method::POST,
            "/v1/cookies",
            "set_cookies",
            "Set cookies",
            |call: Call<SetCookies>| async move {
                Ok((
                    StatusCode::OK,
                    cookies::set(&*call.app.browser()?, &call.request, until(&call.app)).await?,
                ))
            },
        ),
        operation(
            Method::DELETE,
            "/v1/cookies",
            "clear_cookies",
            "Remove all cookies",
            |call: Call<Nothing>| async move {
                cookies::clear(&*call.app.browser()?, until(&call.app)).await?;
                Ok(done())
            },
        ),
        operation(
            Method::GET,
            "/v1/downloads",
            "downloads",
            "All downloads",
            |call: Call<Nothing>| async move {
                Ok((StatusCode::OK, Downloads { downloads: call.app.browser()?.downloads() }))
            },
        ),
        send_download(),
        operation(
            Method::DELETE,
            "/v1/downloads/{guid}",
            "delete_download",
            "Remove a download's file, or cancel a running download",
            |call: Call<Nothing>| async move {
                call.app.browser()?.delete_download(&call.part.unwrap_or_default()).await?;
                Ok(done())
            },
        ),
        operation(
            Method::GET,
            "/v1/files",
            "files",
            "The files that callers put into the clone",
            |call: Call<Nothing>| async move { Ok((StatusCode::OK, call.app.files.list())) },
        ),
        receive_file(),
        operation(
            Method::DELETE,
            "/v1/files/{file}",
            "delete_file",
            "Remove a file that a caller put into the clone",
            |call: Call<Nothing>| async move {
                call.app.files.remove(&call.part.unwrap_or_default())?;
                Ok(done())
            },
        ),
        operation(
            Method::POST,
            "/v1/upload",
            "upload",
            "Give files to a file input, or to the file chooser that an element opens",
            |call: Call<Upload>| async move {
                let context = Context::new(call.app.browser()?, call.app.config.clone(), &call.request)?;
                context.tab.record().await;
                let paths = call.app.files.paths(&call.request.files)?;
                Ok((StatusCode::OK, upload::upload(&context, &call.request, paths).await?))
            },
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_strict() {
        let name = |query: &str| query_values(query, ["name", "delete"]).map(|[name, _]| name);
        assert_eq!(name("name=a%20b+c%C3%BC").unwrap().as_deref(), Some("a b cü"));
        assert_eq!(name("").unwrap(), None);
        for bad in ["other=1", "name=a&name=b", "name=%", "name=%4", "name=%+1", "name=%zz", "name=%ff"] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn paths_with_a_variable_part_match_one_segment() {
        let operations = operations();
        let close = operations.iter().find(|operation| operation.id == "close_tab").unwrap();
        assert_eq!(close.matches("/v1/tabs/t1"), Some(Some("t1")));
        for other in ["/v1/tabs/", "/v1/tabs/a/b", "/v1/tabs", "/v1/tabs/t1/"] {
            assert_eq!(close.matches(other), None, "{other}");
        }
        // No path is matched by two operations of one method.
        for one in &operations {
            let path = one.path.replace(['{', '}'], "");
            let matching = operations
                .iter()
                .filter(|other| other.method == one.method && other.matches(&path).is_some());
            assert_eq!(matching.count(), 1, "{one:?}");
        }
    }
}
