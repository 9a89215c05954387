//! A hostd with the fake host, a stand-in for the browserd of every clone, and the service above them.

use crate::support::database::Database;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{Method, Uri};
use axum::response::IntoResponse;
use controlplane::access::{Caller, Identity, Scope};
use controlplane::actions;
use controlplane::app::{App, CallOptions};
use controlplane::audit::Audit;
use controlplane::config::Config;
use controlplane::error::ApiError;
use controlplane::hosts::{HostError, HostLink, Hostd, MadeClone, WantedClone};
use controlplane::store::{AuditFilter, AuditRow};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hostd::api::{
    CloneId, CloneInfo, CloneName, CloneSecret, CloneState, ListParams, StatusParams, StatusResult,
};
use hostd::client::Client;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Nothing that a test waits for takes longer, even on a machine with other things to do.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// Wait until something holds.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A program that Cargo builds for these tests.
pub(crate) fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let binary = test.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(binary.is_file(), "{} is missing: cargo build -p controlplane --examples", binary.display());
    binary
}

/// A hostd with the fake host in a folder of its own. Its clones survive its end, as real ones do.
#[derive(Debug)]
pub(crate) struct FakeHostd {
    folder: TempDir,
    settings: Vec<String>,
    child: Option<Child>,
}

impl FakeHostd {
    pub(crate) fn new(settings: &[&str]) -> Self {
        // Short, because a socket's path must be.
        let folder = tempfile::Builder::new().prefix("ch").tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let own = [
            format!("paths.socket={}", at("run/sock")),
            "paths.socket_group=".to_owned(),
            format!("paths.state={}", at("state")),
            format!("paths.audit={}", at("audit.log")),
            format!("pool.clones_dir={}", at("clones")),
            "host.driver=fake".to_owned(),
            "lifecycle.quarantine_seconds=0".to_owned(),
            "lifecycle.reconcile_interval_ms=200".to_owned(),
            "server.creates_per_minute=1000000".to_owned(),
            "server.create_burst=1000000".to_owned(),
            "server.destroys_per_minute=1000000".to_owned(),
            "server.destroy_burst=1000000".to_owned(),
            format!("access=[{{users=[\"{}\"],operator=true}}]", nix::unistd::geteuid()),
        ];
        let settings = own.into_iter().chain(settings.iter().map(|text| (*text).to_owned())).collect();
        Self { folder, settings, child: None }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("run/sock")
    }

    /// How long each call of the host takes, from the next start on.
    pub(crate) fn set_latency(&self, milliseconds: u64) {
        let world = self.folder.path().join("state/fake-world");
        fs::create_dir_all(&world).unwrap();
        fs::write(world.join("latency_ms"), milliseconds.to_string()).unwrap();
    }

    pub(crate) fn spawn(&mut self) {
        let binary = example("controlplane-fake-hostd");
        let config = self.folder.path().join("none.toml");
        fs::write(&config, "").unwrap();
        fs::set_permissions(&config, fs::Permissions::from_mode(0o600)).unwrap();
        let log =
            fs::OpenOptions::new().append(true).create(true).open(self.folder.path().join("log")).unwrap();
        let mut command = Command::new(binary);
        command.arg("--config").arg(config).env_clear().stdin(Stdio::null());
        for setting in &self.settings {
            command.args(["--set", setting]);
        }
        self.child = Some(command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap());
    }

    pub(crate) async fn start(&mut self) {
        self.spawn();
        let began = Instant::now();
        loop {
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "hostd ended at its start\n{}", self.log());
            if let Ok(client) = Client::connect(self.socket()).await
                && client.status(StatusParams::default()).await.is_ok()
            {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "hostd does not answer\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            child.wait().unwrap();
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.socket()).await.unwrap().with_timeout(PATIENCE)
    }

    pub(crate) async fn list(&self) -> Vec<CloneInfo> {
        self.client().await.list(ListParams::default()).await.unwrap().clones
    }

    /// The request ids of clones that are ready.
    pub(crate) async fn ready(&self) -> BTreeSet<String> {
        let ready = self.list().await.into_iter().filter(|clone| clone.state == CloneState::Ready);
        ready.filter_map(|clone| clone.request_id.map(String::from)).collect()
    }

    /// Wait until exactly the clones of these sessions are there.
    pub(crate) async fn until_only(&self, sessions: &[&str]) {
        let wanted: BTreeSet<String> = sessions.iter().map(|id| (*id).to_owned()).collect();
        until("only the clones of open sessions are there", async || {
            let there = self.list().await;
            let used = there
                .iter()
                .filter(|clone| !matches!(clone.state, CloneState::Quarantined | CloneState::Pooled));
            used.filter_map(|clone| clone.request_id.clone().map(String::from)).collect::<BTreeSet<_>>()
                == wanted
        })
        .await;
    }

    /// Take a clone away behind the service's back.
    pub(crate) async fn destroy(&self, session: &str) {
        let clones = self.list().await;
        let clone = clones
            .into_iter()
            .find(|clone| clone.request_id.as_ref().is_some_and(|id| id.as_str() == session))
            .expect("the clone of the session");
        let params = hostd::api::DestroyParams::new(clone.name, clone.clone_id.unwrap());
        self.client().await.destroy(params).await.unwrap();
    }
}

impl Drop for FakeHostd {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("--- hostd's log\n{}", lines[lines.len().saturating_sub(20)..].join("\n"));
        }
    }
}

/// A picture of one pixel.
pub(crate) const PIXEL: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

/// Answers in the place of every clone's browserd, and remembers what it was asked.
#[derive(Debug, Clone)]
pub(crate) struct StandIn {
    pub(crate) address: SocketAddr,
    state: Arc<StandInState>,
    server: Arc<Mutex<Option<tokio::task::JoinHandle<()>>>>,
}

#[derive(Debug, Default)]
struct StandInState {
    asked: Mutex<Vec<(String, Value)>>,
    hangs: AtomicBool,
}

impl StandIn {
    pub(crate) async fn start() -> Self {
        Self::listen("127.0.0.1:0".parse().unwrap()).await
    }

    async fn listen(address: SocketAddr) -> Self {
        let listener = tokio::net::TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(StandInState::default());
        let router = Router::new().fallback(reply).with_state(state.clone());
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, state, server: Arc::new(Mutex::new(Some(server))) }
    }

    /// The calls that were forwarded, in their order.
    pub(crate) fn asked(&self) -> Vec<(String, Value)> {
        let asked = self.state.asked.lock().unwrap();
        asked.iter().filter(|(path, _)| path != "/healthz").cloned().collect()
    }

    pub(crate) fn hang(&self, hangs: bool) {
        self.state.hangs.store(hangs, Ordering::SeqCst);
    }

    /// Nothing listens any more.
    pub(crate) fn end(&self) {
        if let Some(server) = self.server.lock().unwrap().take() {
            server.abort();
        }
    }
}

async fn reply(
    State(state): State<Arc<StandInState>>,
    method: Method,
    uri: Uri,
    body: Bytes,
) -> impl IntoResponse {
    let given: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let path =
        if method == Method::DELETE { format!("DELETE {}", uri.path()) } else { uri.path().to_owned() };
    state.asked.lock().unwrap().push((path.clone(), given.clone()));
    if state.hangs.load(Ordering::SeqCst) {
        std::future::pending::<()>().await;
    }
    // `slow-MILLISECONDS` takes so long.
    if let Some(slow) = given["text"].as_str().and_then(|text| text.strip_prefix("slow-")) {
        tokio::time::sleep(Duration::from_millis(slow.parse().unwrap())).await;
    }
    let at = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    let format = given["format"].as_str().unwrap_or("png");
    let picture =
        json!({"image_base64": PIXEL, "format": format, "width": 1, "height": 1, "captured_at": at as u64});
    let mut answer = match path.as_str() {
        "/v1/screenshot" => picture.clone(),
        "/v1/tabs" if method == Method::GET => json!({"tabs": [], "browser_generation": 1}),
        _ => json!({"success": true}),
    };
    if given["after_screenshot"] == true {
        answer["after_screenshot"] = picture;
    }
    axum::Json(answer)
}

/// hostd, whose clones all have the stand-in's browserd.
#[derive(Debug)]
pub(crate) struct Redirected {
    inner: Hostd,
    to: SocketAddr,
    secret: Option<CloneSecret>,
}

impl Redirected {
    pub(crate) fn to_stand_in(socket: &Path, to: SocketAddr) -> Arc<dyn HostLink> {
        Arc::new(Self { inner: Hostd::new(socket), to, secret: None })
    }

    /// With a browserd that has this secret.
    pub(crate) fn to_browserd(socket: &Path, to: SocketAddr, secret: CloneSecret) -> Arc<dyn HostLink> {
        Arc::new(Self { inner: Hostd::new(socket), to, secret: Some(secret) })
    }
}

impl HostLink for Redirected {
    fn create(&self, wanted: WantedClone) -> BoxFuture<'_, Result<MadeClone, HostError>> {
        let made = self.inner.create(wanted);
        async move {
            let made = made.await?;
            let secret = self.secret.clone().unwrap_or_else(|| made.secret.clone());
            Ok(MadeClone { endpoint: format!("http://{}", self.to), secret, ..made })
        }
        .boxed()
    }
    fn destroy(&self, name: CloneName, id: CloneId) -> BoxFuture<'_, Result<(), HostError>> {
        self.inner.destroy(name, id)
    }
    fn list(&self) -> BoxFuture<'_, Result<Vec<CloneInfo>, HostError>> {
        self.inner.list()
    }
    fn status(&self) -> BoxFuture<'_, Result<StatusResult, HostError>> {
        self.inner.status()
    }
}

/// A caller of this tenant with every scope except `admin`.
pub(crate) fn caller(uid: u32, tenant: &str) -> Caller {
    let scopes = Scope::ALL.into_iter().filter(|scope| *scope != Scope::Admin).collect();
    Caller { identity: Identity::User(uid), tenant: tenant.parse().unwrap(), scopes, all_tenants: false }
}

/// hostd, the stand-in, the database, and the configuration of the service.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) hostd: FakeHostd,
    pub(crate) browser: StandIn,
    pub(crate) database: Database,
    pub(crate) config: Config,
    _folder: TempDir,
}

impl Rig {
    pub(crate) async fn new() -> Self {
        Self::with(&[], Database::sqlite()).await
    }

    pub(crate) async fn with(settings: &[&str], database: Database) -> Self {
        let mut hostd = FakeHostd::new(settings);
        hostd.start().await;
        let folder = tempfile::Builder::new().prefix("cp-rec-").tempdir().unwrap();
        let mut config = Config::default();
        config.recording.folder = folder.path().join("recordings");
        config.limits.opens_per_minute = 100_000;
        config.limits.open_burst = 10_000;
        Self { hostd, browser: StandIn::start().await, database, config, _folder: folder }
    }

    pub(crate) async fn app(&self) -> Service {
        self.app_on(Redirected::to_stand_in(&self.hostd.socket(), self.browser.address)).await
    }

    pub(crate) async fn app_on(&self, hosts: Arc<dyn HostLink>) -> Service {
        let store = self.database.open().await;
        let audit = Audit::start(store.clone(), self.database.state(), &self.config.audit).await.unwrap();
        let app = App::start(Arc::new(self.config.clone()), store, audit, hosts).await.unwrap();
        Service { app, me: caller(1000, "default") }
    }
}

/// The service, and a caller of it.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    pub(crate) app: App,
    pub(crate) me: Caller,
}

impl Service {
    pub(crate) fn as_caller(&self, me: Caller) -> Self {
        Self { app: self.app.clone(), me }
    }

    pub(crate) async fn call(
        &self,
        verb: &str,
        session: Option<&str>,
        params: Value,
    ) -> Result<Value, ApiError> {
        self.call_with(verb, session, None, params).await
    }

    pub(crate) async fn call_with(
        &self,
        verb: &str,
        session: Option<&str>,
        key: Option<&str>,
        params: Value,
    ) -> Result<Value, ApiError> {
        let options =
            CallOptions { session: session.map(str::to_owned), idempotency_key: key.map(str::to_owned) };
        let verb = actions::verb(verb).unwrap();
        let params = serde_json::value::to_raw_value(&params).unwrap();
        let answer = self.app.call(&self.me, verb, options, params).await?;
        Ok(serde_json::from_str(answer.get()).unwrap())
    }

    /// Open a session, and return its id.
    pub(crate) async fn open(&self, params: Value) -> String {
        self.call("open_session", None, params).await.unwrap()["session_id"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn state(&self, session: &str) -> (String, String) {
        let view = self.call("session", Some(session), json!({})).await.unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(&view["state"]), text(&view["close_reason"]))
    }

    /// Wait until the session is closed, and return the reason.
    pub(crate) async fn until_closed(&self, session: &str) -> String {
        until("the session is closed", async || self.state(session).await.0 == "closed").await;
        self.state(session).await.1
    }

    pub(crate) async fn audit(&self) -> Vec<AuditRow> {
        let filter = AuditFilter { limit: 10_000, ..AuditFilter::default() };
        self.app.store.audit_rows(&filter).await.unwrap()
    }

    /// End the service as a stop does.
    pub(crate) async fn stop(self) {
        self.app.stop().await;
        self.app.audit.stop(Duration::from_secs(5)).await;
        self.app.store.close().await;
    }
}
