//! The table of operations. Routing, request validation and the OpenAPI document are all derived from it.

use super::error::{ApiError, ErrorCode};
use super::types::*;
use crate::browser::actions::{
    Context, capture, cookies, find, keyboard, navigate, pointer, read, records, snapshot, wait,
};
use crate::browser::supervisor::Phase;
use crate::server::App;
use hyper::{Method, StatusCode};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::time::Instant;

/// The status and JSON body of a successful response.
#[derive(Debug)]
pub(crate) struct OperationResponse {
    pub(crate) status: StatusCode,
    pub(crate) json: Vec<u8>,
}

type ResponseFuture = Pin<Box<dyn Future<Output = Result<OperationResponse, ApiError>> + Send>>;
type Handler = Box<dyn Fn(Arc<App>, Option<String>, Vec<u8>) -> ResponseFuture + Send + Sync>;

/// One operation of the API.
pub struct Operation {
    /// GET, POST or DELETE.
    pub method: Method,
    /// The path; `{tab}` stands for a tab's id.
    pub path: &'static str,
    /// A unique name.
    pub id: &'static str,
    /// One line.
    pub summary: &'static str,
    /// Whether a body is expected.
    pub has_body: bool,
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

    /// Matches a path. The inner option is the tab that the path names.
    pub(crate) fn matches<'a>(&self, path: &'a str) -> Option<Option<&'a str>> {
        match self.path.split_once("{tab}") {
            None => (self.path == path).then_some(None),
            Some((before, after)) => {
                let tab = path.strip_prefix(before)?.strip_suffix(after)?;
                (!tab.is_empty() && !tab.contains('/')).then_some(Some(tab))
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
    Ok(OperationResponse { status, json })
}

/// The input of a handler.
struct Call<T> {
    app: Arc<App>,
    tab: Option<String>,
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
    let has_body = method == Method::POST;
    Operation {
        method,
        path,
        id,
        summary,
        has_body,
        public: false,
        counted: true,
        request_schema: |generator| generator.subschema_for::<T>(),
        response_schema: |generator| generator.subschema_for::<R>(),
        check: |body| parse::<T>(body).map(drop),
        run: Box::new(move |app, tab, body| {
            Box::pin(async move {
                let request = parse::<T>(&body)?;
                drop(body);
                let (status, value) = handler(Call { app, tab, request }).await?;
                respond(status, &value)
            })
        }),
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
            let context = Context::new(&browser, call.app.config.clone(), &call.request)?;
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
                call.app.browser()?.close_tab(&call.tab.unwrap_or_default()).await?;
                Ok(done())
            },
        ),
        operation(
            Method::POST,
            "/v1/tabs/{tab}/activate",
            "activate_tab",
            "Make a tab the default for calls that name no tab",
            |call: Call<Nothing>| async move {
                call.app.browser()?.activate_tab(&call.tab.unwrap_or_default()).await?;
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
                let context = Context::new(&*call.app.browser()?, call.app.config.clone(), &call.request)?;
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
    ]
}
