//! The decision about a line as one plain function, for the fuzzer and its corpus test.
//!
//! Everything up to the call itself is the daemon's own code. The call is not run.

use super::access::Access;
use super::gate::{CallerSession, Gate, LineDecision};
use crate::api::Method;
use crate::config::{AccessRule, Config};
use crate::metrics::Metrics;
use crate::platform::Peer;
use std::sync::{Arc, OnceLock};

/// What becomes of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineOutcome {
    /// The method that would be run and answered.
    pub reached: Option<Method>,
    /// The line that refuses it.
    pub refused: Option<String>,
}

/// The kinds of callers that send a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallerKind {
    /// May do everything.
    Operator,
    /// May create and destroy.
    ControlPlane,
    /// May only read.
    Reader,
}

/// Decide about one line for every kind of caller, and check what must hold for every line.
pub fn line(line: &[u8]) {
    for kind in [CallerKind::Operator, CallerKind::ControlPlane, CallerKind::Reader] {
        let outcome = outcome(kind, line);
        if let Some(refused) = &outcome.refused {
            let value: serde_json::Value = serde_json::from_str(refused).expect("every answer is JSON");
            assert_eq!(value["jsonrpc"], "2.0");
            let one_line = refused.ends_with('\n') && refused.trim_end().lines().count() == 1;
            assert!(one_line, "one line: {refused:?}");
            assert_eq!(outcome.reached, None, "a refused line reaches nothing");
        }
        match kind {
            CallerKind::Operator => {}
            CallerKind::ControlPlane => assert_ne!(outcome.reached, Some(Method::ForceUnmount)),
            CallerKind::Reader => {
                let changed = outcome.reached.is_some_and(|method| method.mutates());
                assert!(!changed, "a reader changed the host: {outcome:?}");
            }
        }
    }
}

/// Decide about one line.
pub fn outcome(kind: CallerKind, line: &[u8]) -> LineOutcome {
    static GATE: OnceLock<Gate> = OnceLock::new();
    let gate = GATE.get_or_init(gate);
    let uid = match kind {
        CallerKind::Operator => 1,
        CallerKind::ControlPlane => 2,
        CallerKind::Reader => 3,
    };
    let peer = Peer { uid, gids: vec![uid], pid: None };
    let grant = gate.access.grant(&peer).expect("a rule names this peer");
    match gate.decide(&CallerSession::new(&peer, grant), line, 0, |_| false) {
        LineDecision::Run(_, call, _) => LineOutcome { reached: Some(call.method()), refused: None },
        LineDecision::Refuse { line, .. } => LineOutcome {
            reached: None,
            refused: Some(String::from_utf8(line).expect("every answer is UTF-8")),
        },
        LineDecision::Ignore(_) => LineOutcome { reached: None, refused: None },
    }
}

fn gate() -> Gate {
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
    // No rate limit: the fuzzer must reach the calls.
    let server = &mut config.server;
    for limit in [
        &mut server.creates_per_minute,
        &mut server.create_burst,
        &mut server.renewals_per_minute,
        &mut server.renewal_burst,
        &mut server.destroys_per_minute,
        &mut server.destroy_burst,
        &mut server.reaps_per_minute,
        &mut server.reap_burst,
        &mut server.reads_per_minute,
        &mut server.read_burst,
    ] {
        *limit = u32::MAX;
    }
    Gate::new(Access::new(&config.access), Arc::new(config), Arc::new(Metrics::new()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(method: &str, params: &str) -> Vec<u8> {
        format!(r#"{{"jsonrpc":"2.0","id":"a","method":"{method}","params":{params}}}"#).into_bytes()
    }

    #[test]
    fn each_kind_of_caller_reaches_what_it_may() {
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
                (CallerKind::Operator, true),
                (CallerKind::ControlPlane, method != Method::ForceUnmount),
                (CallerKind::Reader, !method.mutates()),
            ] {
                let seen = outcome(kind, &text);
                assert_eq!(seen.reached, may.then_some(method), "{kind:?} {method}: {seen:?}");
                let denied = seen.refused.as_ref().is_some_and(|line| line.contains(r#""code":"denied""#));
                assert_eq!(denied, !may, "{seen:?}");
            }
            line(&text);
        }
    }

    #[test]
    fn notifications_reach_nothing() {
        let text = br#"{"jsonrpc":"2.0","method":"browser-clone-create","params":{"request_id":"a"}}"#;
        assert_eq!(outcome(CallerKind::Operator, text), LineOutcome { reached: None, refused: None });
        let text = br#"{"jsonrpc":"2.0","method":"host-status"}"#;
        assert_eq!(outcome(CallerKind::Operator, text), LineOutcome { reached: None, refused: None });
    }
}
