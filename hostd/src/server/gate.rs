//! The gate: whether a line may become an operation.
//!
//! [`Gate`] decides without waiting, so the order of the checks can be read in one place and fuzzed without a host: parse,
//! authorise, share of the running operations, rate.

use super::access::{Access, AccessGrant};
use super::connections::Connections;
use super::log_throttle::UserLogThrottles;
use super::rate::{CallKind, RateLimits};
use super::shares::{Share, ShareCaps, ShareRefusal, Shares};
use crate::api::*;
use crate::audit::Actor;
use crate::config::Config;
use crate::lifecycle::Caller;
use crate::metrics::Metrics;
use crate::platform::Peer;
use crate::wire::{self, Message};
use serde_json::value::RawValue;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How many callers may have the host's checks run at the same time. One of them is reserved for operators.
const CHECKS_AT_ONCE: usize = 2;

/// The retry time for callers when the real one is not known.
pub(super) const SOON: Duration = Duration::from_secs(1);

/// Who may call what, and how much. All connections share it.
#[derive(Debug)]
pub struct Gate {
    /// Who may call what.
    pub access: Access,
    /// All connections.
    pub connections: Arc<Connections>,
    /// The configuration.
    pub config: Arc<Config>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) started: Instant,
    rates: RateLimits,
    operations: Arc<Shares>,
    checks: Arc<Shares>,
    stopping: AtomicBool,
    refusals: UserLogThrottles,
}

/// A call that may be run: authorised, within the limits, its parameters parsed.
#[derive(Debug)]
pub enum Call {
    /// `browser-clone-create`.
    Create(Box<CreateParams>),
    /// `browser-clone-destroy`.
    Destroy(DestroyParams),
    /// `browser-clone-reap`.
    Reap(ReapParams),
    /// `browser-clone-force-unmount`.
    ForceUnmount(ForceUnmountParams),
    /// `browser-clone-list`.
    List(ListParams),
    /// `host-status`.
    Status(StatusParams),
    /// `rpc.discover`.
    Discover,
}

impl Call {
    fn parse(method: Method, params: &str) -> Result<Call, RpcError> {
        Ok(match method {
            Method::Create => Call::Create(Box::new(wire::params(method, params)?)),
            Method::Destroy => Call::Destroy(wire::params(method, params)?),
            Method::Reap => Call::Reap(wire::params(method, params)?),
            Method::ForceUnmount => Call::ForceUnmount(wire::params(method, params)?),
            Method::List => Call::List(wire::params(method, params)?),
            Method::Status => Call::Status(wire::params(method, params)?),
            Method::Discover => {
                let DiscoverParams {} = wire::params(method, params)?;
                Call::Discover
            }
        })
    }

    /// Its method.
    pub fn method(&self) -> Method {
        match self {
            Call::Create(_) => Method::Create,
            Call::Destroy(_) => Method::Destroy,
            Call::Reap(_) => Method::Reap,
            Call::ForceUnmount(_) => Method::ForceUnmount,
            Call::List(_) => Method::List,
            Call::Status(_) => Method::Status,
            Call::Discover => Method::Discover,
        }
    }
}

/// What the gate decides about a line.
#[derive(Debug)]
pub enum LineDecision {
    /// Run the call and answer it under this id. The share counts it against the caps until it ends.
    Run(Box<RawValue>, Box<Call>, Option<Share>),
    /// Refuse it.
    Refuse {
        /// The answer.
        line: Vec<u8>,
        /// The method that would have changed the host, and why it was refused, for the audit log.
        change: Option<(Method, ErrorCode)>,
    },
    /// A notification. By the protocol it is never answered, so it is never executed either: hostd makes no change of the
    /// host that it cannot report.
    Ignore(String),
}

/// One caller: the peer of a connection with what it may do.
#[derive(Debug)]
pub struct CallerSession {
    /// What it may do.
    pub grant: AccessGrant,
    /// As the lifecycle sees it.
    pub caller: Caller,
    /// The user.
    pub uid: u32,
}

impl CallerSession {
    /// The session of a peer.
    pub fn new(peer: &Peer, grant: AccessGrant) -> Self {
        let caller = Caller {
            actor: Actor::Peer { uid: peer.uid, pid: peer.pid },
            uid: Some(peer.uid),
            operator: grant.operator(),
        };
        Self { grant, caller, uid: peer.uid }
    }
}

impl Gate {
    /// A gate for this configuration.
    pub fn new(access: Access, config: Arc<Config>, metrics: Arc<Metrics>) -> Self {
        let server = &config.server;
        let connections =
            Connections::new(server.max_connections, server.max_connections_per_user, metrics.clone());
        Self {
            access,
            connections,
            started: Instant::now(),
            rates: RateLimits::new(server),
            operations: Shares::new(ShareCaps::new(server.max_operations, server.max_operations_per_user)),
            checks: Shares::new(ShareCaps::new(CHECKS_AT_ONCE, 1)),
            stopping: AtomicBool::new(false),
            refusals: UserLogThrottles::default(),
            metrics,
            config,
        }
    }

    /// From now on refuse what would change the host.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Whether a refusal of this user may be logged now, and how many were not logged since the last one.
    pub fn may_log_refusal(&self, uid: u32) -> Option<u64> {
        self.refusals.may_log(uid, Instant::now())
    }

    /// Decide about a line. `busy` is the number of running requests of this connection. `renews` tells whether the caller has
    /// a clone of this request: its lease is renewed then, and no clone is made.
    pub fn decide(
        &self,
        session: &CallerSession,
        line: &[u8],
        busy: usize,
        renews: impl Fn(&RequestId) -> bool,
    ) -> LineDecision {
        match wire::parse(line) {
            Err(refusal) => {
                LineDecision::Refuse { line: wire::failure(refusal.id, &refusal.error), change: None }
            }
            Ok(Message::Notification { method }) => LineDecision::Ignore(wire::shortened(&method)),
            Ok(Message::Call { id, method, params }) => {
                match self.admit(session, method, params, busy, renews) {
                    Ok((call, share)) => LineDecision::Run(id.to_owned(), Box::new(call), share),
                    Err(error) => LineDecision::Refuse {
                        line: wire::failure(id, &error),
                        change: method.mutates().then_some((method, error.code())),
                    },
                }
            }
        }
    }

    /// Authorise first, then check the limits: a caller learns nothing about a method it may not use.
    fn admit(
        &self,
        session: &CallerSession,
        method: Method,
        params: &str,
        busy: usize,
        renews: impl Fn(&RequestId) -> bool,
    ) -> Result<(Call, Option<Share>), RpcError> {
        if !session.grant.allows(method) {
            return Err(self.denied(session.uid, method));
        }
        if method.mutates() && self.stopping.load(Ordering::Relaxed) {
            return Err(shutting_down());
        }
        let most = self.config.server.max_requests_per_connection;
        if busy >= most {
            let message = format!("{busy} requests are running on this connection");
            let hint = format!("wait for an answer: at most {most} may run on one connection");
            let refusal = RpcError::new(ErrorCode::TooManyRequests, message, hint).retry_after(SOON);
            return Err(self.limited(session.uid, "requests", refusal));
        }
        let call = Call::parse(method, params)?;
        // The share first: it is given back if the rate refuses the call, and a token is not.
        let share = self.take_share(session, &call)?;
        let kind = match &call {
            Call::Create(params) if renews(&params.request_id) => CallKind::Renewal,
            _ => CallKind::of(method),
        };
        self.take_token(session, method, kind)?;
        Ok((call, share))
    }

    fn take_share(&self, session: &CallerSession, call: &Call) -> Result<Option<Share>, RpcError> {
        let (uid, operator) = (session.uid, session.grant.operator());
        if matches!(call, Call::Status(params) if params.checks) {
            let taken = self.checks.take(uid, operator).map_err(|_| {
                let message = "the host is being checked for another caller";
                let refusal =
                    RpcError::new(ErrorCode::TooManyRequests, message, "try again").retry_after(SOON);
                self.limited(uid, "checks", refusal)
            });
            return taken.map(Some);
        }
        if !call.method().mutates() {
            return Ok(None);
        }
        let taken = self.operations.take(uid, operator).map_err(|refusal| {
            let caps = self.operations.caps();
            let (limit, message) = match refusal {
                ShareRefusal::User => {
                    let most = caps.per_user;
                    (
                        "operations_per_user",
                        format!("{most} operations of user {uid} are running on this host"),
                    )
                }
                ShareRefusal::Host => {
                    let most = if operator { caps.total } else { caps.total - caps.for_operators };
                    ("operations", format!("{most} operations are running on this host"))
                }
            };
            let refusal = RpcError::new(ErrorCode::TooManyRequests, message, "try again").retry_after(SOON);
            self.limited(uid, limit, refusal)
        });
        taken.map(Some)
    }

    fn take_token(&self, session: &CallerSession, method: Method, kind: CallKind) -> Result<(), RpcError> {
        let uid = session.uid;
        let taken = self.rates.take(kind, uid, session.grant.operator(), self.started.elapsed());
        taken.map_err(|early| {
            let message = format!("user {uid} calls {method} more than {} times a minute", early.per_minute);
            let hint = "wait as long as retry_after_ms says";
            let refusal = RpcError::new(ErrorCode::RateLimited, message, hint).retry_after(early.wait);
            self.limited(uid, kind.limit(), refusal)
        })
    }

    fn denied(&self, uid: u32, method: Method) -> RpcError {
        if let Some(left_out) = self.may_log_refusal(uid) {
            tracing::warn!(uid, %method, left_out, "denied");
        }
        let hint = if method == Method::ForceUnmount {
            "only operators may: an access rule with operator = true"
        } else {
            "the administrator allows it with an access rule in hostd's configuration"
        };
        RpcError::new(ErrorCode::Denied, format!("user {uid} may not call {method}"), hint)
    }

    /// Count and log a refusal by a limit. The audit log has one line for many of them.
    fn limited(&self, uid: u32, limit: &'static str, refusal: RpcError) -> RpcError {
        self.metrics.limit_rejection(limit);
        if let Some(left_out) = self.may_log_refusal(uid) {
            tracing::warn!(uid, limit, left_out, "refused: {refusal}");
        }
        refusal
    }
}

pub(super) fn shutting_down() -> RpcError {
    RpcError::new(ErrorCode::ShuttingDown, "hostd is stopping", "try again when it is back")
        .retry_after(5 * SOON)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::AccessRule;

    const OPERATOR: u32 = 1;

    /// User 1 is operator; users 2 and 3 may create, destroy and reap.
    fn gate(change: impl FnOnce(&mut Config)) -> Gate {
        let rule = |users: &[&str], operator| AccessRule {
            users: users.iter().map(|user| (*user).to_owned()).collect(),
            operations: vec![Method::Create, Method::Destroy, Method::Reap],
            operator,
            ..AccessRule::default()
        };
        let access = vec![rule(&["1"], true), rule(&["2", "3"], false)];
        let mut config = Config { access, ..Config::default() };
        change(&mut config);
        Gate::new(Access::new(&config.access), Arc::new(config), Arc::new(Metrics::new()))
    }

    /// The share of a call that is let through, or the code that refuses it.
    fn ask(gate: &Gate, uid: u32, method: Method, params: &str) -> Result<Option<Share>, String> {
        ask_known(gate, uid, method, params, "")
    }

    /// The same, where the caller has a clone of the request `known`.
    fn ask_known(
        gate: &Gate,
        uid: u32,
        method: Method,
        params: &str,
        known: &str,
    ) -> Result<Option<Share>, String> {
        let peer = Peer { uid, gids: vec![], pid: None };
        let session = CallerSession::new(&peer, gate.access.grant(&peer).unwrap());
        let line = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        match gate.decide(&session, line.as_bytes(), 0, |request| request.as_str() == known) {
            LineDecision::Run(_, call, share) => {
                assert_eq!(call.method(), method);
                Ok(share)
            }
            LineDecision::Refuse { line, .. } => {
                let answer: serde_json::Value = serde_json::from_slice(&line).unwrap();
                Err(answer["error"]["data"]["code"].as_str().unwrap().to_owned())
            }
            LineDecision::Ignore(method) => panic!("{method} is ignored"),
        }
    }

    fn refused(outcome: Result<Option<Share>, String>) -> String {
        outcome.expect_err("a refusal")
    }

    #[test]
    fn a_users_checks_leave_one_for_operators() {
        let gate = gate(|_| {});
        let checks = |uid| ask(&gate, uid, Method::Status, r#"{"checks":true}"#);
        let one = checks(2).unwrap();
        assert_eq!(
            (refused(checks(2)).as_str(), refused(checks(3)).as_str()),
            ("too_many_requests", "too_many_requests")
        );
        let operator = checks(OPERATOR).unwrap();
        assert_eq!(refused(checks(OPERATOR)), "too_many_requests");
        drop((one, operator));
        assert!(checks(3).unwrap().is_some());
        assert!(ask(&gate, 2, Method::Status, "{}").unwrap().is_none(), "plain status needs no share");
    }

    #[test]
    fn every_operation_takes_a_share_until_it_ends() {
        let gate = gate(|config| {
            config.server.max_operations = 8;
            config.server.max_operations_per_user = 2;
        });
        let reap = |uid| ask(&gate, uid, Method::Reap, "{}");
        let create = |uid| ask(&gate, uid, Method::Create, r#"{"request_id":"a"}"#);
        let running = (reap(2).unwrap(), create(2).unwrap());
        assert_eq!(
            (refused(reap(2)), refused(create(2))),
            ("too_many_requests".into(), "too_many_requests".into())
        );
        let other = create(3).unwrap();
        let operators: Vec<_> = (0..5).map(|_| reap(OPERATOR).unwrap()).collect();
        assert_eq!(refused(reap(OPERATOR)), "too_many_requests", "the total holds for operators too");
        drop((running, other, operators));
        assert!(reap(2).unwrap().is_some());
        let text = gate.metrics.text();
        for (limit, count) in [("operations_per_user", 2), ("operations", 1)] {
            let line = format!("hostd_limit_rejections_total{{limit=\"{limit}\"}} {count}\n");
            assert!(text.contains(&line), "{line}{text}");
        }
    }

    #[test]
    fn a_call_that_its_share_refuses_costs_no_token_and_the_other_way_round() {
        let gate = gate(|config| {
            config.server.max_operations_per_user = 1;
            config.server.reaps_per_minute = 1;
            config.server.reap_burst = 2;
        });
        let reap = || ask(&gate, 2, Method::Reap, "{}");
        let first = reap().unwrap();
        for _ in 0..5 {
            assert_eq!(refused(reap()), "too_many_requests");
        }
        drop(first);
        drop(reap().expect("the second token"));
        assert_eq!(refused(reap()), "rate_limited");
        let destroy = format!(r#"{{"name":"browsertask001","clone_id":"{}"}}"#, "0".repeat(32));
        assert!(ask(&gate, 2, Method::Destroy, &destroy).is_ok(), "the refused reap gave its share back");
        assert_eq!(refused(ask(&gate, 2, Method::Reap, r#"{"dry_run":1}"#)), "invalid_params");
    }

    #[test]
    fn renewals_do_not_use_up_the_rate_of_creates_nor_are_they_stopped_by_it() {
        let gate = gate(|config| {
            config.server.creates_per_minute = 1;
            config.server.create_burst = 1;
            config.server.renewals_per_minute = 1;
            config.server.renewal_burst = 3;
        });
        let create = |id: &str| {
            ask_known(&gate, 2, Method::Create, &format!(r#"{{"request_id":"{id}"}}"#), "mine").map(drop)
        };
        assert_eq!((create("mine"), create("new")), (Ok(()), Ok(())));
        assert_eq!(create("other"), Err("rate_limited".into()));
        assert_eq!((create("mine"), create("mine")), (Ok(()), Ok(())), "the lease is still renewed");
        assert_eq!(create("mine"), Err("rate_limited".into()));
    }
}
