//! The path from a line to an operation as one function, for the fuzzer and its corpus test.
//!
//! All code is the daemon's own except the operations, which only record that they were called.

use super::access::Access;
use super::dispatch::{Handled, ProgressLines, Session, Shared};
use super::operations::Operations;
use crate::api::*;
use crate::config::{AccessRule, Config};
use crate::lifecycle::{Caller, EngineStatus, ProgressSink};
use crate::metrics::Metrics;
use crate::platform::Peer;
use crate::slot::Slots;
use futures_util::FutureExt;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// The result of one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The operations that were reached, in order.
    pub reached: Vec<Method>,
    /// The lines that were written.
    pub written: Vec<String>,
}

/// The kinds of callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// May do everything.
    Operator,
    /// May create and destroy.
    ControlPlane,
    /// May only read.
    Reader,
}

/// Parse, authorise and dispatch one line for every kind of caller, and check the invariants.
pub fn line(line: &[u8]) {
    for kind in [Kind::Operator, Kind::ControlPlane, Kind::Reader] {
        let outcome = outcome(kind, line);
        assert!(outcome.reached.len() <= 1, "one line reaches at most one operation: {outcome:?}");
        for written in &outcome.written {
            let value: serde_json::Value = serde_json::from_str(written).expect("every answer is JSON");
            assert_eq!(value["jsonrpc"], "2.0");
            assert!(
                written.ends_with('\n') && written.trim_end().lines().count() == 1,
                "one line: {written:?}"
            );
        }
        let changed = outcome.reached.iter().any(|method| method.mutates());
        match kind {
            Kind::Operator => {}
            Kind::ControlPlane => assert_ne!(outcome.reached, [Method::ForceUnmount]),
            Kind::Reader => assert!(!changed, "a reader changed the host: {outcome:?}"),
        }
        assert!(!changed || !outcome.written.is_empty(), "a change is always answered: {outcome:?}");
    }
}

/// Parse, authorise and dispatch one line, and return the result.
pub fn outcome(kind: Kind, line: &[u8]) -> Outcome {
    static SHARED: OnceLock<Arc<Shared<Recorder>>> = OnceLock::new();
    let shared = SHARED.get_or_init(shared);
    let uid = match kind {
        Kind::Operator => 1,
        Kind::ControlPlane => 2,
        Kind::Reader => 3,
    };
    let peer = Peer { uid, gids: vec![uid], pid: None };
    let grant = shared.access.grant(&peer).expect("a rule names this peer");
    let written = Arc::new(Mutex::new(Vec::new()));
    let progress: ProgressLines = {
        let written = written.clone();
        Arc::new(move |line| written.lock().unwrap_or_else(PoisonError::into_inner).push(line))
    };
    REACHED.with_borrow_mut(Vec::clear);
    let answer = match shared.handle(&Session::new(&peer, grant), line, 0, &progress) {
        Handled::Now(answer) | Handled::Refused(answer) => Some(answer),
        Handled::Later(pending) => pending.now_or_never(),
        Handled::Ignored(_) => None,
    };
    let mut lines = std::mem::take(&mut *written.lock().unwrap_or_else(PoisonError::into_inner));
    lines.extend(answer);
    let text = |line| String::from_utf8(line).expect("every answer is UTF-8");
    Outcome { reached: REACHED.take(), written: lines.into_iter().map(text).collect() }
}

std::thread_local! {
    static REACHED: std::cell::RefCell<Vec<Method>> = const { std::cell::RefCell::new(Vec::new()) };
}

fn shared() -> Arc<Shared<Recorder>> {
    let rule = |user: &str, operations: &[Method], operator| AccessRule {
        users: vec![user.to_owned()],
        operations: operations.to_vec(),
        operator,
        ..AccessRule::default()
    };
    let access = vec![
        rule("1", &[], true),
        rule("2", &[Method::Create, Method::Destroy, Method::Reap], false),
        rule("3", &[], false),
    ];
    let mut config = Config { access, ..Config::default() };
    // No rate limit: the fuzzer must reach the operations.
    config.server.creates_per_minute = u32::MAX;
    config.server.create_burst = u32::MAX;
    let access = Access::new(&config.access);
    let pool = Slots::new(&config.pool).expect("the default pool is valid");
    Arc::new(Shared::new(Recorder, access, Arc::new(config), &pool, Arc::new(Metrics::new())))
}

/// Operations that only record that they were called.
#[derive(Debug)]
struct Recorder;

impl Recorder {
    fn record(&self, method: Method, progress: Option<ProgressSink>) {
        REACHED.with_borrow_mut(|reached| reached.push(method));
        if let Some(progress) = progress {
            let name = "browsertask001".parse().expect("a valid name");
            progress(&name, "storage", ProgressState::Started, Duration::ZERO);
        }
    }

    fn refusal(&self) -> RpcError {
        RpcError::new(ErrorCode::HostNotReady, "nothing is done while fuzzing", "none")
    }
}

impl Operations for Recorder {
    async fn create(
        &self,
        _: &Caller,
        _: CreateParams,
        progress: Option<ProgressSink>,
    ) -> Result<CreateResult, RpcError> {
        self.record(Method::Create, progress);
        Err(self.refusal())
    }

    async fn destroy(
        &self,
        _: &Caller,
        params: DestroyParams,
        progress: Option<ProgressSink>,
    ) -> Result<DestroyResult, RpcError> {
        self.record(Method::Destroy, progress);
        let DestroyParams { name, clone_id, .. } = params;
        Ok(DestroyResult { name, clone_id, already_gone: true, complete: true, stages: Vec::new() })
    }

    async fn reap(
        &self,
        _: &Caller,
        params: ReapParams,
        progress: Option<ProgressSink>,
    ) -> Result<ReapResult, RpcError> {
        self.record(Method::Reap, progress);
        Ok(ReapResult { dry_run: params.dry_run, ..ReapResult::default() })
    }

    async fn force_unmount(
        &self,
        _: &Caller,
        params: ForceUnmountParams,
        progress: Option<ProgressSink>,
    ) -> Result<ForceUnmountResult, RpcError> {
        self.record(Method::ForceUnmount, progress);
        Ok(ForceUnmountResult { name: params.name, unmounted: Vec::new(), left: Vec::new() })
    }

    fn list(&self, _: &Caller, _: &ListParams) -> ListResult {
        self.record(Method::List, None);
        ListResult { clones: Vec::new() }
    }

    fn status(&self) -> EngineStatus {
        // The metrics call it as well, so it is recorded once only.
        REACHED.with_borrow_mut(|reached| {
            if reached.is_empty() {
                reached.push(Method::Status);
            }
        });
        EngineStatus {
            clones: BTreeMap::new(),
            operations: 0,
            egress: EgressHealth::Ok,
            pool: None,
            alarms: Vec::new(),
        }
    }

    fn drivers(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    async fn checks(&self) -> Vec<Finding> {
        Vec::new()
    }

    async fn shutdown(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(method: &str, params: &str) -> Vec<u8> {
        format!(r#"{{"jsonrpc":"2.0","id":"a","method":"{method}","params":{params}}}"#).into_bytes()
    }

    #[test]
    fn each_kind_of_caller_reaches_only_allowed_operations() {
        let id = "0".repeat(32);
        let clone = format!(r#"{{"name":"browsertask001","clone_id":"{id}"}}"#);
        let calls = [
            (Method::Create, r#"{"request_id":"a"}"#),
            (Method::Destroy, clone.as_str()),
            (Method::Reap, r#"{"dry_run":true}"#),
            (Method::ForceUnmount, clone.as_str()),
            (Method::List, "{}"),
            (Method::Status, r#"{"metrics":true}"#),
            (Method::Status, r#"{"checks":true}"#),
        ];
        for (method, params) in calls {
            let text = call(method.name(), params);
            for (kind, may) in [
                (Kind::Operator, true),
                (Kind::ControlPlane, method != Method::ForceUnmount),
                (Kind::Reader, !method.mutates()),
            ] {
                let seen = outcome(kind, &text);
                let expected: &[Method] = if may { &[method] } else { &[] };
                assert_eq!(seen.reached, expected, "{kind:?} {method}: {seen:?}");
                assert_eq!(seen.written.len(), 1);
                assert_eq!(seen.written[0].contains(r#""code":"denied""#), !may, "{seen:?}");
            }
            line(&text);
        }
    }

    #[test]
    fn progress_comes_before_the_answer() {
        let seen = outcome(
            Kind::Operator,
            &call("browser-clone-create", r#"{"request_id":"a","progress_token":"t"}"#),
        );
        assert_eq!(seen.written.len(), 2);
        assert!(
            seen.written[0].contains(r#""method":"progress","params":{"progress_token":"t""#),
            "{seen:?}"
        );
        assert!(seen.written[1].contains(r#""id":"a""#), "{seen:?}");
    }

    #[test]
    fn notifications_reach_nothing() {
        let text = br#"{"jsonrpc":"2.0","method":"browser-clone-create","params":{"request_id":"a"}}"#;
        assert_eq!(outcome(Kind::Operator, text), Outcome { reached: Vec::new(), written: Vec::new() });
        let text = br#"{"jsonrpc":"2.0","method":"host-status"}"#;
        assert_eq!(outcome(Kind::Operator, text), Outcome { reached: Vec::new(), written: Vec::new() });
    }
}
