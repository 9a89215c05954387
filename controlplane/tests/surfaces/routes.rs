//! Who may call what: every route of the OpenAPI document, with every kind of wrong credential.

use crate::rig::{Answer, Rig};
use controlplane::surfaces::http::openapi;
use serde_json::{Value, json};

struct Route {
    method: String,
    path: String,
    operation: Value,
}

fn routes() -> Vec<Route> {
    let document = openapi::document();
    let mut routes = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let (method, path) = (method.to_ascii_uppercase(), path.clone());
            routes.push(Route { method, path, operation: operation.clone() });
        }
    }
    routes
}

impl Route {
    fn public(&self) -> bool {
        self.operation["security"] == json!([])
    }

    fn scope(&self) -> Option<&str> {
        self.operation["description"].as_str()?.split('`').nth(1)
    }

    fn of_session(&self) -> bool {
        self.path.contains("{session_id}")
    }

    fn ask(&self, rig: &Rig, key: Option<&str>, session: &str, key_id: &str) -> Answer {
        let path = self.path.replace("{session_id}", session).replace("{key_id}", key_id);
        let path = path.replace("{guid}", "0").replace("{number}", "1");
        let path = if path.ends_with("/files") { format!("{path}?name=a") } else { path };
        let body = (self.method == "POST" && !path.contains("/files")).then(|| json!({}));
        rig.remote(&self.method, &path, key, body)
    }
}

const ALL: [&str; 6] = ["read", "write", "evaluate", "files", "cdp", "admin"];

#[test]
fn every_route_refuses_every_wrong_credential() {
    let rig = Rig::new();
    let (good, good_id) = rig.key("a", &ALL);
    let (stranger, _) = rig.key("b", &ALL);
    let (sibling, _) = rig.key("a", &["read", "write", "evaluate", "files", "cdp"]);
    let (revoked, revoked_id) = rig.key("a", &ALL);
    rig.revoke("a", &revoked_id);
    let (expired, _) = rig.key_until("a", &ALL, Some(1));
    let session = rig.open(&good);
    let unknown = format!("ses_{}", "0".repeat(32));
    let unknown_key = format!("key_{}", "0".repeat(32));
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let wrong = format!("{}x", &good[..good.len() - 1]);
    let mut checked = 0;
    for route in routes() {
        let name = format!("{} {}", route.method, route.path);
        if route.public() {
            let status = route.ask(&rig, None, &session, &good_id).status;
            assert!(matches!(status, 200 | 503), "{name}: {status}");
            continue;
        }
        for (kind, key) in [
            ("none", None),
            ("nonsense", Some("nonsense")),
            ("wrong", Some(wrong.as_str())),
            ("revoked", Some(revoked.as_str())),
            ("expired", Some(expired.as_str())),
        ] {
            let answer = route.ask(&rig, key, &session, &good_id);
            assert_eq!((answer.status, answer.code()), (401, "unauthorized"), "{name} {kind}: {answer:?}");
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"), "{name} {kind}");
            checked += 1;
        }
        if let Some(scope) = route.scope() {
            // `admin` includes `read` and `write`.
            let others: Vec<&str> = ALL
                .into_iter()
                .filter(|other| *other != scope && !(*other == "admin" && matches!(scope, "read" | "write")))
                .collect();
            let (narrow, _) = rig.key("a", &others);
            let answer = route.ask(&rig, Some(&narrow), &session, &good_id);
            assert_eq!((answer.status, answer.code()), (403, "forbidden"), "{name}: {answer:?}");
            assert!(answer.body.contains(scope), "{name}: {answer:?}");
            checked += 1;
        }
        // Another tenant, and another caller of the same tenant without `admin`, see what they would see of nothing.
        let others: &[&str] = if route.of_session() { &[&stranger, &sibling] } else { &[&stranger] };
        for other in others {
            let seen = route.ask(&rig, Some(other), &session, &good_id);
            let nothing = route.ask(&rig, Some(other), &unknown, &unknown_key);
            if route.of_session() || route.path.contains("{key_id}") {
                assert!(matches!(seen.status, 400 | 403 | 404 | 426), "{name}: {seen:?}");
                let body = seen.body.replace(&session, &unknown).replace(&good_id, &unknown_key);
                assert_eq!((seen.status, &body), (nothing.status, &nothing.body), "{name}");
            } else if route.path == "/v1/audit" {
                // Its own calls, with what it asked for.
                let rows = seen.json["rows"].as_array().unwrap();
                assert!(!rows.is_empty() && rows.iter().all(|row| row["tenant"] == "b"), "{seen:?}");
            } else {
                assert!(!seen.body.contains(&session) && !seen.body.contains(&good_id), "{name}: {seen:?}");
            }
            checked += 1;
        }
    }
    assert!(checked > 300, "{checked} checks");
    // The session is untouched, and the wrong callers' key still works.
    let view = rig.remote("GET", &format!("/v1/sessions/{session}"), Some(&good), None);
    assert_eq!(view.json["state"], "open", "{view:?}");
}

#[test]
fn local_users_are_who_the_kernel_says_and_keys_narrow_them() {
    let rig = Rig::new();
    let me = rig.local("GET", "/v1/whoami", None);
    let uid = nix::unistd::geteuid();
    assert_eq!((me.text("name"), me.text("tenant")), (format!("uid:{uid}"), "default".to_owned()));
    let (key, key_id) = rig.key("a", &["read"]);
    let it = rig.remote("GET", "/v1/whoami", Some(&key), None);
    assert_eq!(it.json, json!({ "name": key_id, "tenant": "a", "scopes": ["read"] }));
    // A holder of a key may not name another tenant.
    let (admin, _) = rig.key("a", &["admin"]);
    let answer = rig.remote("GET", "/v1/keys?tenant=b", Some(&admin), None);
    assert_eq!((answer.status, answer.code()), (403, "forbidden"), "{answer:?}");
    assert_eq!(rig.remote("GET", "/v1/keys?tenant=a", Some(&admin), None).status, 200);
}

#[test]
fn paths_and_methods_that_do_not_exist_say_so() {
    let rig = Rig::new();
    let (key, _) = rig.key("a", &ALL);
    for (method, path, status, code) in [
        ("GET", "/", 404, "not_found"),
        ("GET", "/v1/nothing", 404, "not_found"),
        ("GET", "/v1/sessions/", 404, "not_found"),
        ("PUT", "/v1/sessions", 405, "method_not_allowed"),
        ("POST", "/healthz", 405, "method_not_allowed"),
        ("GET", "/v1/sessions/nothing", 404, "no_such_session"),
        ("DELETE", "/v1/keys/nothing", 404, "no_such_key"),
        ("GET", "/v1/recordings/nothing", 404, "no_such_session"),
        ("GET", "/cdp/cpa_AAAA", 404, "no_such_address"),
        ("GET", "/cdp/%FF", 400, "bad_request"),
    ] {
        let answer = rig.remote(method, path, Some(&key), None);
        assert_eq!((answer.status, answer.code()), (status, code), "{method} {path}: {answer:?}");
        assert!(!answer.json["error"]["hint"].as_str().unwrap().is_empty(), "{answer:?}");
        assert!(answer.header("x-request-id").is_some_and(|id| id.len() == 32), "{answer:?}");
        if status == 405 {
            assert!(answer.header("allow").is_some(), "{answer:?}");
        }
    }
    // Whoever has no key is not told what exists.
    assert_eq!(rig.remote("GET", "/v1/nothing", None, None).code(), "unauthorized");
}

#[test]
fn keys_are_shown_once_and_what_is_done_to_them_is_in_the_audit_log() {
    let rig = Rig::new();
    let (key, key_id) = rig.key("a", &["read"]);
    let list = rig.local("GET", "/v1/keys?tenant=a", None);
    assert!(list.body.contains(&key_id) && !list.body.contains(&key), "{list:?}");
    rig.revoke("a", &key_id);
    let again = rig.local("DELETE", &format!("/v1/keys/{key_id}?tenant=a"), None);
    assert_eq!((again.status, &again.json["revoked"]), (200, &json!(false)), "{again:?}");
    let rows = rig.audit("default");
    let verbs: Vec<(&str, &str)> = rows
        .iter()
        .map(|row| (row["verb"].as_str().unwrap(), row["outcome"].as_str().unwrap_or("begin")))
        .filter(|(verb, _)| verb.ends_with("_key"))
        .collect();
    for wanted in [("issue_key", "begin"), ("issue_key", "ok"), ("revoke_key", "begin")] {
        assert!(verbs.contains(&wanted), "{verbs:?}");
    }
    assert!(!serde_json::to_string(&rows).unwrap().contains(&key), "no secret in the log");
    assert_eq!(rig.local("GET", "/v1/audit/verify", None).json["intact"], true);
}

#[test]
fn a_caller_that_calls_too_often_is_told_when_to_come_back() {
    let rig = Rig::with(|config| {
        config.limits.calls_per_second = 1;
        config.limits.call_burst = 5;
    });
    let (one, _) = rig.key("a", &["read"]);
    let (two, _) = rig.key("a", &["read"]);
    let answers: Vec<Answer> = (0..20).map(|_| rig.remote("GET", "/v1/whoami", Some(&one), None)).collect();
    let refused = answers.iter().find(|answer| answer.status == 429).expect("a refusal");
    assert_eq!(refused.code(), "call_rate");
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1, "{refused:?}");
    assert_eq!(
        rig.remote("GET", "/v1/whoami", Some(&two), None).status,
        200,
        "another caller has its own rate"
    );
}

#[test]
fn probes_and_metrics_need_no_key_and_name_nobody() {
    let rig = Rig::new();
    let (key, _) = rig.key("tenant-of-a", &ALL);
    let session = rig.open(&key);
    rig.remote("GET", "/v1/whoami", Some("nonsense"), None);
    assert_eq!(rig.remote("GET", "/healthz", None, None).json["status"], "ok");
    let ready = rig.remote("GET", "/readyz", None, None);
    assert_eq!(ready.status, 503, "{ready:?}");
    assert_eq!(ready.json["checks"], json!({ "audit": "ok", "hostd": "failed", "store": "ok" }));
    let metrics = rig.remote("GET", "/metrics", None, None).body;
    for line in [
        "browserd_sessions{state=\"open\"} 1",
        "browserd_denials_total{reason=\"unauthorized\"} 1",
        "controlplane_requests_total{route=\"/v1/sessions\",status=\"201\"} 1",
        "controlplane_build_info{version=",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    assert!(!metrics.contains(&session) && !metrics.contains("tenant-of-a"), "{metrics}");
    let status = rig.local("GET", "/v1/status", None);
    assert_eq!(status.json["sessions"]["open"], 1, "{status:?}");
    assert_ne!(status.json["checks"]["hostd"], "ok");
}
