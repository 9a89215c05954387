//! The service's own calls beside the verbs: keys, the audit log, recordings, CDP addresses, the state of the service.
//!
//! They are one table, from which routes and the OpenAPI document are made.

use super::serve::Connection;
use super::verbs::{caller, filter};
use super::{answers, params};
use crate::access::keys::{NewKey, scopes};
use crate::access::{Caller, DEFAULT_SCOPES, Scope};
use crate::audit::Entry;
use crate::error::{ApiError, ErrorCode};
use crate::ids::{KeyId, SessionId, TenantId};
use crate::recording::{RecordingDetail, RecordingList};
use crate::store::{AuditFilter, AuditRow, KeyRow};
use crate::surfaces::Surface;
use crate::surfaces::relay::{AskForAddress, CdpAddress};
use crate::time::{millis, now, rfc3339};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::on;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// One call.
pub struct ServiceCall {
    /// The name.
    pub name: &'static str,
    /// One line.
    pub summary: &'static str,
    /// The HTTP method. The parameters of a POST are its JSON body, those of others are their query.
    pub method: Method,
    /// The HTTP path.
    pub path: &'static str,
    /// The scope that a caller needs.
    pub scope: Option<Scope>,
    /// The JSON schema of the parameters, without those of the path.
    pub params: fn() -> Value,
    /// What the answer is.
    pub answer: Answer,
    run: for<'a> fn(&'a Surface, Asked) -> BoxFuture<'a, Result<Response, ApiError>>,
}

impl std::fmt::Debug for ServiceCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// What a call answers.
#[derive(Debug, Clone, Copy)]
pub enum Answer {
    /// JSON of this schema, with this status.
    Json(StatusCode, fn() -> Value),
    /// Bytes of one of these media types.
    Bytes(&'static [&'static str]),
}

/// A call that was authenticated and whose caller has the scope.
struct Asked {
    caller: Caller,
    path: HashMap<String, String>,
    params: Box<RawValue>,
    /// The Host of the request, if it says how the client reached the listener.
    host: Option<String>,
}

impl Asked {
    fn params<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        params::parse(&self.params)
    }

    fn path(&self, name: &str) -> &str {
        self.path.get(name).map_or("", String::as_str)
    }

    fn session(&self) -> Result<SessionId, ApiError> {
        let missing = |_| ApiError::new(ErrorCode::NoSuchSession, "there is no recording of this session");
        self.path("session_id").to_owned().try_into().map_err(missing)
    }
}

fn schema<T: JsonSchema>() -> Value {
    schemars::schema_for!(T).to_value()
}

/// Every call.
pub fn service_calls() -> &'static [ServiceCall] {
    const CREATED: StatusCode = StatusCode::CREATED;
    const OK: StatusCode = StatusCode::OK;
    static CALLS: std::sync::LazyLock<Vec<ServiceCall>> = std::sync::LazyLock::new(|| {
        macro_rules! calls {
            ($($name:literal $summary:literal, $method:ident $path:literal, $scope:expr, $params:ty => $answer:expr, $run:ident;)*) => {
                vec![$(ServiceCall {
                    name: $name,
                    summary: $summary,
                    method: Method::$method,
                    path: $path,
                    scope: $scope,
                    params: schema::<$params>,
                    answer: $answer,
                    run: |surface, asked| $run(surface, asked).boxed(),
                },)*]
            };
        }
        calls! {
            "whoami" "Show who the caller is and what it may do", GET "/v1/whoami", None,
                Nothing => Answer::Json(OK, schema::<WhoAmI>), whoami;
            "status" "Show the state of the service", GET "/v1/status", Some(Scope::Admin),
                Nothing => Answer::Json(OK, schema::<ServiceStatus>), status;
            "cdp_address" "Make an address for CDP clients that can only take a URL",
                POST "/v1/sessions/{session_id}/cdp-address", Some(Scope::Cdp),
                AskForAddress => Answer::Json(CREATED, schema::<CdpAddress>), cdp_address;
            "issue_key" "Issue an API key; the answer is the only one that has its secret", POST "/v1/keys", Some(Scope::Admin),
                IssueKey => Answer::Json(CREATED, schema::<IssuedKey>), issue_key;
            "keys" "List the keys of the tenant, the oldest first", GET "/v1/keys", Some(Scope::Admin),
                OfTenant => Answer::Json(OK, schema::<KeyList>), list_keys;
            "revoke_key" "Revoke a key: its calls, CDP connections and CDP addresses end at once",
                DELETE "/v1/keys/{key_id}", Some(Scope::Admin),
                OfTenant => Answer::Json(OK, schema::<RevokedKey>), revoke_key;
            "audit" "Read the audit log of the tenant, the oldest rows first", GET "/v1/audit", Some(Scope::Admin),
                ReadAudit => Answer::Json(OK, schema::<AuditRows>), audit;
            "audit_verify" "Check the hash chain and the signed heads of the whole audit log", GET "/v1/audit/verify", Some(Scope::Admin),
                Nothing => Answer::Json(OK, any_object), audit_verify;
            "recordings" "List recordings, the newest first", GET "/v1/recordings", Some(Scope::Read),
                ListRecordings => Answer::Json(OK, schema::<RecordingList>), recordings;
            "recording" "List the pictures of a recording", GET "/v1/recordings/{session_id}", Some(Scope::Read),
                Nothing => Answer::Json(OK, schema::<RecordingDetail>), recording;
            "recording_export" "Read a recording as one HTML page with a time line", GET "/v1/recordings/{session_id}/export", Some(Scope::Read),
                Nothing => Answer::Bytes(&["text/html"]), recording_export;
            "recording_picture" "Read a picture of a recording", GET "/v1/recordings/{session_id}/{number}", Some(Scope::Read),
                Nothing => Answer::Bytes(&["image/png", "image/jpeg", "image/webp"]), recording_picture;
        }
    });
    &CALLS
}

pub(super) fn routes(mut router: Router<Arc<Surface>>) -> Router<Arc<Surface>> {
    for call in service_calls() {
        let handler = move |State(surface): State<Arc<Surface>>, request: Request| async move {
            run(&surface, call, request).await.unwrap_or_else(IntoResponse::into_response)
        };
        router = router.route(call.path, on(filter(&call.method), handler));
    }
    router
}

async fn run(surface: &Surface, call: &ServiceCall, request: Request) -> Result<Response, ApiError> {
    let (mut parts, body) = request.into_parts();
    let caller = caller(&parts)?;
    if let Some(scope) = call.scope {
        caller.require(scope)?;
    }
    let path = params::path(&mut parts).await?;
    let params = params::read(&mut parts, body, call.params, &surface.app.config.http).await?;
    // A client of the Unix socket sends any name.
    let local = parts.extensions.get::<Connection>().is_none_or(Connection::is_local_socket);
    let host =
        parts.headers.get("host").filter(|_| !local).and_then(|host| host.to_str().ok()).map(str::to_owned);
    (call.run)(surface, Asked { caller, path, params, host }).await
}

fn any_object() -> Value {
    json!({ "type": "object" })
}

/// No parameters.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// Who the caller is.
#[derive(Debug, Serialize, JsonSchema)]
struct WhoAmI {
    /// The name in the audit log: `uid:1000` or `key_…`.
    name: String,
    /// The tenant it acts for.
    tenant: TenantId,
    /// What it may do.
    scopes: Vec<Scope>,
}

async fn whoami(_: &Surface, asked: Asked) -> Result<Response, ApiError> {
    asked.params::<Nothing>()?;
    let caller = asked.caller;
    let answer =
        WhoAmI { name: caller.name(), tenant: caller.tenant, scopes: caller.scopes.into_iter().collect() };
    Ok(answers::json(StatusCode::OK, &answer))
}

/// The state of the service.
#[derive(Debug, Serialize, JsonSchema)]
struct ServiceStatus {
    /// The version of the program.
    version: &'static str,
    /// When it was started (RFC 3339).
    started_at: String,
    /// The database: `sqlite` or `postgres`.
    store: &'static str,
    /// The sessions by state, and `waiting`: opens in the queue.
    sessions: BTreeMap<&'static str, usize>,
    /// Open connections of CDP clients.
    cdp_connections: usize,
    /// The parts that the service needs, each `ok` or what is wrong with it.
    checks: BTreeMap<&'static str, String>,
}

async fn status(surface: &Surface, asked: Asked) -> Result<Response, ApiError> {
    asked.params::<Nothing>()?;
    let counts = surface.app.sessions.counts();
    let answer = ServiceStatus {
        version: env!("CARGO_PKG_VERSION"),
        started_at: rfc3339(surface.started_at),
        store: surface.app.store.engine_name(),
        sessions: [
            ("waiting", counts.waiting),
            ("opening", counts.opening),
            ("open", counts.open),
            ("closing", counts.closing),
        ]
        .into(),
        cdp_connections: surface.relays.connections(),
        checks: surface.checks().await,
    };
    Ok(answers::json(StatusCode::OK, &answer))
}

async fn cdp_address(surface: &Surface, asked: Asked) -> Result<Response, ApiError> {
    let wanted: AskForAddress = asked.params()?;
    let session = asked.path("session_id");
    let address =
        surface.relays.address(surface, &asked.caller, session, &wanted, asked.host.as_deref()).await?;
    Ok(answers::json(StatusCode::CREATED, &address))
}

/// Which tenant. A caller names its own, or none; only root and the service's own user, by the Unix socket, name another.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct OfTenant {
    /// The tenant; the caller's own if it is not given. Only root and the service's own user, at the Unix socket, may give
    /// another.
    tenant: Option<TenantId>,
}

fn tenant_of(caller: &Caller, wanted: Option<TenantId>) -> Result<TenantId, ApiError> {
    let Some(wanted) = wanted else { return Ok(caller.tenant.clone()) };
    if wanted == caller.tenant || caller.all_tenants {
        return Ok(wanted);
    }
    let message = "only root and the service's own user, at the Unix socket, may name another tenant";
    Err(ApiError::new(ErrorCode::Forbidden, message).hint("Leave `tenant` out."))
}

/// A key to issue.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct IssueKey {
    /// A name for people.
    #[schemars(length(max = 200))]
    label: String,
    /// What its holder may do; read, write, files and cdp if it is not given.
    #[schemars(length(min = 1))]
    scopes: Option<Vec<Scope>>,
    /// When it expires, in seconds from now; never if it is not given.
    #[schemars(range(min = 1, max = 315_360_000))]
    expires_in_seconds: Option<u64>,
    /// The tenant; the caller's own if it is not given. Only root and the service's own user, at the Unix socket, may give
    /// another.
    tenant: Option<TenantId>,
}

/// A key without its secret.
#[derive(Debug, Serialize, JsonSchema)]
struct KeyView {
    /// Its public name.
    key_id: KeyId,
    /// Its tenant.
    tenant: TenantId,
    /// A name for people.
    label: String,
    /// What its holder may do.
    scopes: Vec<Scope>,
    /// Who issued it.
    issued_by: String,
    /// When it was issued (RFC 3339).
    issued_at: String,
    /// When it expires (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    /// When it was revoked (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked_at: Option<String>,
    /// When it was last used (RFC 3339), to the minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    used_at: Option<String>,
}

impl KeyView {
    fn of(row: KeyRow) -> Result<Self, ApiError> {
        let scopes = scopes(&row)?.into_iter().collect();
        Ok(Self {
            key_id: row.id,
            tenant: row.tenant,
            label: row.label,
            scopes,
            issued_by: row.issued_by,
            issued_at: rfc3339(row.issued_at),
            expires_at: row.expires_at.map(rfc3339),
            revoked_at: row.revoked_at.map(rfc3339),
            used_at: row.used_at.map(rfc3339),
        })
    }
}

/// A new key.
#[derive(Serialize, JsonSchema)]
struct IssuedKey {
    /// The secret for the header `Authorization: Bearer`. It is shown once and cannot be had again.
    key: String,
    /// The key.
    #[serde(flatten)]
    view: KeyView,
}

async fn issue_key(surface: &Surface, asked: Asked) -> Result<Response, ApiError> {
    const LONGEST: u64 = 315_360_000;
    let wanted: IssueKey = asked.params()?;
    let expires = match wanted.expires_in_seconds {
        Some(seconds) if !(1..=LONGEST).contains(&seconds) => {
            let message = format!("expires_in_seconds is {seconds}; it is from 1 to {LONGEST}");
            return Err(ApiError::new(ErrorCode::BadRequest, message));
        }
        seconds => seconds.map(|seconds| now() + millis(Duration::from_secs(seconds))),
    };
    let tenant = tenant_of(&asked.caller, wanted.tenant)?;
    let scopes: std::collections::BTreeSet<Scope> =
        wanted.scopes.unwrap_or_else(|| DEFAULT_SCOPES.to_vec()).into_iter().collect();
    let params = json!({
        "tenant": tenant,
        "label": wanted.label,
        "scopes": scopes,
        "expires_at": expires.map(rfc3339),
    });
    let begun = surface.app.audit.begin(Entry::of(&asked.caller, "issue_key", None, params)).await?;
    let new =
        NewKey { tenant, label: wanted.label, scopes, expires_at: expires, issued_by: asked.caller.name() };
    let issued = surface.access.keys().issue(new).await;
    begun.end(issued.as_ref().map(drop));
    let (row, token) = issued?;
    let answer = IssuedKey { key: token.reveal().to_owned(), view: KeyView::of(row)? };
    Ok(answers::json(StatusCode::CREATED, &answer))
}

/// Keys.
#[derive(Debug, Serialize, JsonSchema)]
struct KeyList {
    /// The keys, also those that expired or were revoked.
    keys: Vec<KeyView>,
}

async fn list_keys(surface: &Surface, asked: Asked) -> Result<Response, ApiError> {
    let tenant = tenant_of(&asked.caller, asked.params::<OfTenant>()?.tenant)?;
    let rows = surface.access.keys().list(&tenant).await?;
    let keys = rows.into_iter().map(KeyView::of).collect::<Result<_, _>>()?;
    Ok(answers::json(StatusCode::OK, &KeyList { keys }))
}

/// A key that does not work any more.
#[derive(Debug, Serialize, JsonSchema)]
struct RevokedKey {
    /// The key.
    key_id: KeyId,
    /// Whether it worked before: false if it was revoked already.
    revoked: bool,
}

async fn revoke_key(surface: &Surface, asked: Asked) -> Result<Response, ApiError> {
    let tenant = tenant_of(&asked.caller, asked.params::<OfTenant>()?.tenant)?;
    let missing = || ApiError::new(ErrorCode::NoSuchKey, format!("the tenant {tenant} has no such key"));
    let key_id: KeyId = asked.path("key_id").to_owned().try_into().map_err(|_| missing())?;
    let params = json!({ "key_id": key_id, "tenant": tenant });
    let begun = surface.app.audit.begin_always(Entry::of(&asked.caller, "revoke_key", None, params)).await;
    let outcome = revoke(surface, &key_id, &tenant, missing).await;
    begun.end(outcome.as_ref().map(drop));
    Ok(answers::json(StatusCode::OK, &RevokedKey { key_id, revoked: outcome? }))
}

async fn revoke(
    surface: &Surface,
    key: &KeyId,
    tenant: &TenantId,
    missing: impl Fn() -> ApiError,
) -> Result<bool, ApiError> {
    let revoked = surface.access.keys().revoke(key, tenant).await?;
    if !revoked && surface.app.store.key(key).await?.is_none_or(|row| row.tenant != *tenant) {
        return Err(missing());
    }
    surface.relays.key_revoked(key);
    Ok(revoked)
}

/// Which rows of the audit log.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct ReadAudit {
    /// Only rows after this number: `next` of an earlier answer.
    #[schemars(range(min = 0))]
    after: u64,
    /// Only rows of this session.
    session_id: Option<SessionId>,
    /// Maximum number of rows (default 100, at most 1000).
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<u32>,
    /// The tenant; the caller's own if it is not given. Only root and the service's own user, at the Unix socket, may give
    /// another.
    tenant: Option<TenantId>,
}

/// A row of the audit log.
#[derive(Debug, Serialize, JsonSchema)]
struct AuditView {
    /// Its number in the whole log.
    seq: i64,
    /// When it happened (RFC 3339).
    at: String,
    /// What joins the two rows of a call.
    call: String,
    /// `begin` or `end`.
    event: String,
    /// Who.
    actor: String,
    /// The tenant.
    tenant: String,
    /// The session.
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<String>,
    /// The verb.
    verb: String,
    /// The redacted parameters; of `begin` rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<Value>,
    /// `ok` or an error code; of `end` rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<String>,
    /// The hash of the row, which covers the row before it too.
    hash: String,
}

impl AuditView {
    fn of(row: AuditRow) -> Self {
        Self {
            seq: row.seq,
            at: rfc3339(row.at),
            call: row.call,
            event: row.event,
            actor: row.actor,
            tenant: row.tenant,
            session_id: row.session,
            verb: row.verb,
            params: row.params.map(|params| serde_json::from_str(&params).unwrap_or(Value::String(params))),
            outcome: row.outcome,
            hash: row.hash.iter().map(|byte| format!("{byte:02x}")).collect(),
        }
    }
}

/// Rows of the audit log.
#[derive(Debug, Serialize, JsonSchema)]
struct AuditRows {
    /// The rows.
    rows: Vec<AuditView>,
    /// `after` for the next call.
    next: i64,
}

async fn audit(surface: &Surface, asked: Asked) -> Result<Response, ApiError> {
    let wanted: ReadAudit = asked.params()?;
    let limit = limit(wanted.limit)?;
    let too_large = |_| ApiError::new(ErrorCode::BadRequest, "after is too large");
    let after_seq = i64::try_from(wanted.after).map_err(too_large)?;
    let tenant = tenant_of(&asked.caller, wanted.tenant)?;
    let filter = AuditFilter { tenant: Some(tenant), session: wanted.session_id, after_seq, limit };
    let rows = surface.app.store.audit_rows(&filter).await?;
    let next = rows.last().map_or(after_seq, |row| row.seq);
    let rows = rows.into_iter().map(AuditView::of).collect();
    Ok(answers::json(StatusCode::OK, &AuditRows { rows, next }))
}

async fn audit_verify(surface: &Surface, asked: Asked) -> Result<Response, ApiError> {
    asked.params::<Nothing>()?;
    Ok(answers::json(StatusCode::OK, &surface.app.audit.verify().await?))
}

/// Which recordings.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct ListRecordings {
    /// Maximum number of recordings (default 100, at most 1000).
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<u32>,
    /// Only recordings older than that of this session: the last of an earlier answer.
    before: Option<SessionId>,
}

fn limit(wanted: Option<u32>) -> Result<u32, ApiError> {
    match wanted.unwrap_or(100) {
        limit @ 1..=1000 => Ok(limit),
        limit => Err(ApiError::new(ErrorCode::BadRequest, format!("limit is {limit}; it is from 1 to 1000"))),
    }
}

async fn recordings(surface: &Surface, asked: Asked) -> Result<Response, ApiError> {
    let wanted: ListRecordings = asked.params()?;
    let owner = (!asked.caller.may(Scope::Admin)).then(|| asked.caller.name());
    let list = surface
        .app
        .recordings
        .list(&asked.caller.tenant, owner.as_deref(), wanted.before.as_ref(), limit(wanted.limit)?)
        .await?;
    Ok(answers::json(StatusCode::OK, &list))
}

/// The recording, if the caller may see it: its own, with the scope `admin` those of its tenant.
async fn seen(surface: &Surface, asked: &Asked) -> Result<RecordingDetail, ApiError> {
    let detail = surface.app.recordings.show(&asked.caller.tenant, &asked.session()?).await?;
    if asked.caller.may(Scope::Admin) || detail.recording.owner == asked.caller.name() {
        return Ok(detail);
    }
    Err(ApiError::new(ErrorCode::NoSuchSession, "there is no recording of this session"))
}

async fn recording(surface: &Surface, asked: Asked) -> Result<Response, ApiError> {
    asked.params::<Nothing>()?;
    Ok(answers::json(StatusCode::OK, &seen(surface, &asked).await?))
}

async fn recording_picture(surface: &Surface, asked: Asked) -> Result<Response, ApiError> {
    asked.params::<Nothing>()?;
    seen(surface, &asked).await?;
    let missing = |_| ApiError::new(ErrorCode::NotFound, "the recording has no such picture");
    let number: u64 = asked.path("number").parse().map_err(missing)?;
    let (media_type, bytes) =
        surface.app.recordings.frame(&asked.caller.tenant, &asked.session()?, number).await?;
    Ok(answers::bytes(StatusCode::OK, media_type, bytes))
}

async fn recording_export(surface: &Surface, asked: Asked) -> Result<Response, ApiError> {
    asked.params::<Nothing>()?;
    seen(surface, &asked).await?;
    let page = surface.app.recordings.export(&asked.caller.tenant, &asked.session()?).await?;
    Ok(answers::bytes(StatusCode::OK, "text/html; charset=utf-8", Body::from_stream(page)))
}
