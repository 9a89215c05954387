//! Calls under way: each is counted, and each that changes the host has an audit line before and after.
//!
//! A create fails without its line. A removal does not, because a clone must go when its time has come.

use super::errors::shutting_down;
use super::registry::blocking;
use crate::api::{ErrorCode, Method, RpcError};
use crate::audit::{Actor, Audit, Outcome};
use crate::metrics::Metrics;
use crate::timing;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::Notify;
use tracing::Instrument;

/// What an operator should know, by subject.
#[derive(Debug, Default)]
pub(super) struct Alarms(Mutex<BTreeMap<&'static str, String>>);

impl Alarms {
    /// Set or clear the alarm of a subject.
    pub(super) fn set(&self, subject: &'static str, alarm: Option<String>) {
        let mut alarms = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match alarm {
            Some(text) if alarms.get(subject) == Some(&text) => {}
            Some(text) => {
                tracing::error!(subject, alarm = text, "alarm");
                alarms.insert(subject, text);
            }
            None => drop(alarms.remove(subject)),
        }
    }

    pub(super) fn get(&self, subject: &str) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(subject).cloned()
    }

    pub(super) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}

/// The calls under way and their audit lines.
pub(super) struct Calls {
    audit: Arc<Audit>,
    audit_path: PathBuf,
    metrics: Arc<Metrics>,
    alarms: Arc<Alarms>,
    active: AtomicU64,
    ended: Notify,
    closing: AtomicBool,
}

/// One call, reap or background task that a stopping daemon waits for.
pub(super) struct ActiveCall(Arc<Calls>);

impl Drop for ActiveCall {
    fn drop(&mut self) {
        let left = self.0.active.fetch_sub(1, Ordering::SeqCst) - 1;
        self.0.metrics.set_operations(left);
        self.0.ended.notify_waiters();
    }
}

/// The audit line before a call that is running.
pub(super) struct AuditLine {
    number: u64,
    actor: Actor,
    method: Method,
    began: Instant,
}

impl Calls {
    pub(super) fn new(
        audit: Arc<Audit>,
        audit_path: PathBuf,
        metrics: Arc<Metrics>,
        alarms: Arc<Alarms>,
    ) -> Calls {
        let (active, ended, closing) = (AtomicU64::new(0), Notify::new(), AtomicBool::new(false));
        Calls { audit, audit_path, metrics, alarms, active, ended, closing }
    }

    /// From now on new calls are refused.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
    }

    pub(super) fn closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    pub(super) fn active(&self) -> u64 {
        self.active.load(Ordering::SeqCst)
    }

    /// Count something that a stopping daemon waits for.
    pub(super) fn begin(self: &Arc<Self>) -> ActiveCall {
        let now = self.active.fetch_add(1, Ordering::SeqCst) + 1;
        self.metrics.set_operations(now);
        ActiveCall(self.clone())
    }

    /// Wait until nothing is under way.
    pub(super) async fn all_ended(&self) {
        loop {
            let ended = self.ended.notified();
            if self.active() == 0 {
                return;
            }
            ended.await;
        }
    }

    /// A caller's call: refused while stopping, counted by its result.
    pub(super) async fn counted<T>(
        self: &Arc<Self>,
        method: Method,
        work: impl Future<Output = Result<T, RpcError>>,
    ) -> Result<T, RpcError> {
        let _active = self.begin();
        if self.closing() {
            return Err(shutting_down());
        }
        let result = work.await;
        self.metrics.operation(method, result_label(&result));
        result
    }

    /// A create: one audit line before it and one after it. Without the line before there is no effect; `prepare` runs while
    /// that line is written, so it only reads. Callers box the work: its future is large, and every layer around it would
    /// contain it once more.
    pub(super) async fn audited_create<T, P, W: Future<Output = Result<T, RpcError>>>(
        self: &Arc<Self>,
        actor: &Actor,
        request: Value,
        prepare: impl Future<Output = P>,
        work: impl FnOnce(P) -> W,
        name: impl FnOnce(&T) -> Option<String>,
    ) -> Result<T, RpcError> {
        let began = Instant::now();
        let (audit, by) = (self.audit.clone(), actor.clone());
        let written = blocking(move || audit.before(&by, Method::Create, &request));
        let (written, prepared) = tokio::join!(written.instrument(timing::part("audit")), prepare);
        let number = match written {
            Ok(number) => number,
            Err(error) => {
                self.audit_written(&Err(&error));
                let path = self.audit_path.display();
                return Err(RpcError::new(
                    ErrorCode::AuditUnavailable,
                    format!("{path}: the audit line cannot be written ({error}), so nothing was done"),
                    "free space on its disk or correct its permissions, then try again",
                ));
            }
        };
        let line = AuditLine { number, actor: actor.clone(), method: Method::Create, began };
        self.audited(line, work(prepared), name).await
    }

    /// A removal: one audit line before it and one after it. It goes on if they cannot be written.
    pub(super) async fn audited_removal<T>(
        self: &Arc<Self>,
        actor: &Actor,
        method: Method,
        request: Value,
        work: impl Future<Output = Result<T, RpcError>>,
        name: impl FnOnce(&T) -> Option<String>,
    ) -> Result<T, RpcError> {
        let line = self.audit_before_removal(actor, method, request).await;
        self.audited(line, work, name).await
    }

    async fn audited<T>(
        &self,
        line: AuditLine,
        work: impl Future<Output = Result<T, RpcError>>,
        name: impl FnOnce(&T) -> Option<String>,
    ) -> Result<T, RpcError> {
        let result = work.await;
        let (name, error) = match &result {
            Ok(value) => (name(value), None),
            Err(error) => (error.data.name.clone().map(String::from), Some(error.to_string())),
        };
        self.audit_after(line, result_label(&result), name, error).await;
        result
    }

    /// Write the line before a removal, or keep it for later.
    pub(super) async fn audit_before_removal(
        &self,
        actor: &Actor,
        method: Method,
        request: Value,
    ) -> AuditLine {
        let began = Instant::now();
        let (audit, by) = (self.audit.clone(), actor.clone());
        let written = blocking(move || audit.before_removal(&by, method, &request));
        let (number, written) = written.instrument(timing::part("audit")).await;
        self.audit_written(&written.as_ref().copied());
        AuditLine { number, actor: actor.clone(), method, began }
    }

    /// Write the line after the call, or keep it for later.
    pub(super) async fn audit_after(
        &self,
        line: AuditLine,
        result: &str,
        name: Option<String>,
        error: Option<String>,
    ) {
        let AuditLine { number, actor, method, began } = line;
        let seconds = began.elapsed().as_secs_f64();
        let outcome = Outcome { result: result.to_owned(), name, error, seconds };
        let audit = self.audit.clone();
        let written = blocking(move || audit.after(number, &actor, method, &outcome)).await;
        self.audit_written(&written.as_ref().copied());
    }

    /// Write the audit lines that wait, and the numbers of refused calls.
    pub(super) async fn flush_audit(&self) {
        let audit = self.audit.clone();
        let written = blocking(move || audit.flush()).await;
        self.audit_written(&written.as_ref().copied());
    }

    /// Why the audit log cannot be written now, if it cannot.
    pub(super) async fn audit_problem(&self) -> Option<String> {
        let audit = self.audit.clone();
        blocking(move || audit.problem()).await
    }

    /// Count a call that was refused before it changed anything.
    pub(super) fn refused(&self, actor: &Actor, method: Method, code: ErrorCode) {
        self.audit.refused(actor, method, code.word());
    }

    /// Set or clear the alarm, and count what could not be written.
    fn audit_written(&self, written: &Result<(), &io::Error>) {
        let alarm = written.err().map(|error| {
            self.metrics.audit_write_failed();
            let (waiting, lost) = self.audit.waiting();
            format!(
                "the audit log cannot be written: {error}. Creates are refused; {waiting} lines of removals wait, \
                 {lost} did not fit"
            )
        });
        self.alarms.set("audit", alarm);
    }
}

fn result_label<T>(result: &Result<T, RpcError>) -> &'static str {
    result.as_ref().map_or_else(|error| error.code().word(), |_| "ok")
}
