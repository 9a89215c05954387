//! Open, use, close.

use crate::rig::{Rig, caller, until};
use controlplane::access::Scope;
use controlplane::error::ErrorCode;
use hostd::api::CloneState;
use serde_json::json;
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread")]
async fn a_session_has_the_defaults_and_a_clone_of_its_name_until_it_is_closed() {
    let rig = Rig::new().await;
    let service = rig.app().await;
    let opened = service.call("open_session", None, json!({})).await.unwrap();
    let id = opened["session_id"].as_str().unwrap();
    assert_eq!(
        (&opened["credential_mode"], &opened["record"], &opened["domains"], &opened["state"]),
        (&json!("clean"), &json!("transient"), &json!([]), &json!("open"))
    );
    assert!(opened["started_at"].is_string(), "{opened}");
    assert_eq!(rig.hostd.ready().await.into_iter().collect::<Vec<_>>(), [id]);
    let clone = rig.hostd.list().await.into_iter().find(|clone| clone.state == CloneState::Ready).unwrap();
    assert_eq!(clone.tenant.unwrap().as_str(), "default");

    let navigated = service.call("navigate", Some(id), json!({"url": "https://example.org/"})).await.unwrap();
    assert_eq!(navigated["success"], true);
    let list = service.call("sessions", None, json!({})).await.unwrap();
    assert_eq!(list["sessions"][0]["session_id"], id);

    let closed = service.call("close_session", Some(id), json!({})).await.unwrap();
    assert_eq!(closed["close_reason"], "requested");
    rig.hostd.until_only(&[]).await;
    assert_eq!(
        service.call("close_session", Some(id), json!({})).await.unwrap(),
        closed,
        "closing again is the same"
    );
    let error = service.call("navigate", Some(id), json!({"url": "https://example.org/"})).await.unwrap_err();
    assert!(error.is(ErrorCode::SessionClosed), "{error}");
    assert_eq!(service.call("sessions", None, json!({})).await.unwrap()["sessions"], json!([]));
    assert_eq!(
        service.call("sessions", None, json!({"all": true})).await.unwrap()["sessions"][0]["state"],
        "closed"
    );
    assert_eq!(rig.browser.asked().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_session_cannot_be_is_refused_before_anything_is_made() {
    let rig = Rig::new().await;
    let service = rig.app().await;
    for (params, code) in [
        (json!({"credential_mode": "operator", "domains": ["a.example"]}), ErrorCode::GrantRequired),
        (json!({"domains": ["a.example"]}), ErrorCode::BadRequest),
        (json!({"deadline_seconds": 0}), ErrorCode::BadRequest),
        (json!({"deadline_seconds": 24 * 3600 + 1}), ErrorCode::BadRequest),
        (json!({"idle_seconds": 0}), ErrorCode::BadRequest),
        (json!({"idle_seconds": 24 * 3600 + 1}), ErrorCode::BadRequest),
        (json!({"labels": {"": "x"}}), ErrorCode::BadRequest),
        (json!({"labels": {"x": "a\nb"}}), ErrorCode::BadRequest),
        (json!({"record": "maybe"}), ErrorCode::BadRequest),
    ] {
        let error = service.call("open_session", None, params.clone()).await.unwrap_err();
        assert!(error.is(code), "{params}: {error}");
    }
    let reader = service
        .as_caller(controlplane::access::Caller { scopes: [Scope::Read].into(), ..service.me.clone() });
    let error = reader.call("open_session", None, json!({})).await.unwrap_err();
    assert!(error.is(ErrorCode::Forbidden), "{error}");
    assert!(rig.hostd.ready().await.is_empty());
    assert!(service.audit().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_belongs_to_its_owner_and_tenant() {
    let rig = Rig::new().await;
    let service = rig.app().await;
    let id = service.open(json!({})).await;
    let unknown = "ses_00000000000000000000000000000000";
    let expected = service.call("url", Some(unknown), json!({})).await.unwrap_err();
    assert!(expected.is(ErrorCode::NoSuchSession));
    let mut admin = caller(1, "other");
    admin.scopes.insert(Scope::Admin);
    for stranger in [caller(1001, "default"), caller(1000, "other"), admin] {
        let other = service.as_caller(stranger);
        for (verb, params) in [
            ("url", json!({})),
            ("session", json!({})),
            ("close_session", json!({})),
            ("click", json!({"x": 1, "y": 1})),
            ("download", json!({"guid": "a"})),
        ] {
            let error = other.call(verb, Some(&id), params).await.unwrap_err();
            let shown = error.to_string().replace(&id, unknown);
            assert_eq!(shown, expected.to_string(), "{verb}");
        }
        assert!(other.app.cdp(&other.me, &id).await.unwrap_err().is(ErrorCode::NoSuchSession));
        assert_eq!(other.call("sessions", None, json!({})).await.unwrap()["sessions"], json!([]));
    }
    // The administrator of the tenant sees and closes it.
    let mut admin = caller(1, "default");
    admin.scopes.insert(Scope::Admin);
    let admin = service.as_caller(admin);
    assert_eq!(
        admin.call("sessions", None, json!({})).await.unwrap()["sessions"][0]["session_id"],
        id.as_str()
    );
    admin.call("close_session", Some(&id), json!({})).await.unwrap();
    assert!(rig.browser.asked().is_empty(), "nothing was forwarded");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotency_key_opens_one_session() {
    let rig = Rig::new().await;
    let service = rig.app().await;
    let open = |params| service.call_with("open_session", None, Some("key-1"), params);
    let (a, b, c) = tokio::join!(open(json!({})), open(json!({})), open(json!({})));
    let ids: Vec<_> = [a, b, c].into_iter().map(|view| view.unwrap()["session_id"].clone()).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(rig.hostd.ready().await.len(), 1);
    let error = open(json!({"record": "off"})).await.unwrap_err();
    assert!(error.is(ErrorCode::IdempotencyConflict), "{error}");
    // Another caller's key is another key.
    let other = service.as_caller(caller(1001, "default"));
    let view = other.call_with("open_session", None, Some("key-1"), json!({})).await.unwrap();
    assert_ne!(view["session_id"], ids[0]);
    // A session that has ended is not opened again.
    service.call("close_session", ids[0].as_str(), json!({})).await.unwrap();
    assert!(open(json!({})).await.unwrap_err().is(ErrorCode::SessionClosed));
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_and_expired_sessions_are_closed_and_used_ones_are_not() {
    let rig = Rig::new().await;
    let service = rig.app().await;
    let idle = service.open(json!({"idle_seconds": 1})).await;
    let busy = service.open(json!({"idle_seconds": 1})).await;
    let expires = service.open(json!({"deadline_seconds": 3})).await;
    let began = Instant::now();
    // One call that takes longer than the idle time.
    let long = service.call("type", Some(&busy), json!({"text": "slow-2500"}));
    let (long, reason) = tokio::join!(long, service.until_closed(&idle));
    long.unwrap();
    assert_eq!(reason, "idle");
    assert!(began.elapsed() >= Duration::from_secs(1));
    assert_eq!(service.until_closed(&expires).await, "deadline");
    assert_eq!(service.until_closed(&busy).await, "idle");
    rig.hostd.until_only(&[]).await;
    let closes =
        service.audit().await.into_iter().filter(|row| row.actor == "service" && row.event == "begin");
    assert_eq!(closes.count(), 3, "the service's own closes are audited");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_clone_ends_its_session_with_the_reason() {
    let rig = Rig::new().await;
    let service = rig.app().await;
    let (lost, kept) = (service.open(json!({})).await, service.open(json!({})).await);
    rig.hostd.destroy(&lost).await;
    assert_eq!(service.until_closed(&lost).await, "clone_lost");
    assert_eq!(service.state(&kept).await.0, "open");
    let error = service.call("url", Some(&lost), json!({})).await.unwrap_err();
    assert!(error.is(ErrorCode::SessionClosed) && error.message().contains("clone_lost"), "{error}");
    rig.hostd.until_only(&[&kept]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lease_is_renewed_while_the_session_is_open() {
    let mut rig = Rig::new().await;
    rig.config.sessions.lease_seconds = 3;
    let service = rig.app().await;
    let id = service.open(json!({})).await;
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert_eq!(service.state(&id).await.0, "open");
    assert!(rig.hostd.ready().await.contains(&id));
    // Without the service, hostd ends the clone with its lease.
    service.stop().await;
    rig.hostd.until_only(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parallel_closes_join() {
    let rig = Rig::new().await;
    let service = rig.app().await;
    let id = service.open(json!({})).await;
    let closes = (0..10).map(|_| service.call("close_session", Some(&id), json!({})));
    let answers = futures_util::future::join_all(closes).await;
    let first = answers[0].clone().unwrap();
    assert!(answers.into_iter().all(|answer| answer.unwrap() == first));
    assert_eq!(service.app.sessions.counts(), Default::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_whose_caller_went_away_is_closed() {
    let mut rig = Rig::new().await;
    rig.hostd.kill();
    rig.hostd.set_latency(50);
    rig.hostd.start().await;
    let service = rig.app().await;
    let open = service.call("open_session", None, json!({}));
    assert!(tokio::time::timeout(Duration::from_millis(200), open).await.is_err(), "the create takes longer");
    until("the session is closed", async || {
        let list = service.call("sessions", None, json!({"all": true})).await.unwrap();
        list["sessions"][0]["close_reason"] == "abandoned"
    })
    .await;
    rig.hostd.until_only(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_tab_run_in_order_and_tabs_run_at_once() {
    let rig = Rig::new().await;
    let service = rig.app().await;
    let id = service.open(json!({})).await;
    let began = Instant::now();
    let type_in = |tab: &str, text: &str| {
        let params = json!({"tab": tab, "text": text});
        let (service, id) = (service.clone(), id.clone());
        tokio::spawn(async move { service.call("type", Some(&id), params).await.unwrap() })
    };
    let mut calls = Vec::new();
    for text in ["slow-400", "slow-1", "b"] {
        for tab in ["t1", "t2"] {
            calls.push(type_in(tab, text));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for call in calls {
        call.await.unwrap();
    }
    let asked = rig.browser.asked();
    for tab in ["t1", "t2"] {
        let texts: Vec<_> = asked
            .iter()
            .filter(|(_, body)| body["tab"] == tab)
            .map(|(_, body)| body["text"].as_str().unwrap())
            .collect();
        assert_eq!(texts, ["slow-400", "slow-1", "b"]);
    }
    let first_two: Vec<_> = asked[..2].iter().map(|(_, body)| body["tab"].as_str().unwrap()).collect();
    assert_ne!(first_two[0], first_two[1], "the tabs did not wait for each other");
    assert!(began.elapsed() >= Duration::from_millis(400));
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_in_no_audit_row_and_cancelled_calls_say_so() {
    let rig = Rig::new().await;
    let service = rig.app().await;
    let id = service.open(json!({})).await;
    let canary = "canary-5301";
    for (verb, params) in [
        ("type", json!({"text": canary})),
        ("fill", json!({"selector": "#a", "text": canary})),
        ("select", json!({"selector": "#a", "values": [canary]})),
        ("set_value", json!({"selector": "#a", "value": canary})),
        ("evaluate", json!({"expression": canary})),
        ("dialogs", json!({"accept": true, "prompt_text": canary})),
        ("put_file", json!({"name": "a.txt", "content_base64": "Y2FuYXJ5LTUzMDE="})),
        ("navigate", json!({"url": format!("https://user:{canary}@example.org/")})),
    ] {
        service.call(verb, Some(&id), params).await.unwrap();
    }
    for key in ["c", "Shift+A"] {
        service.call("press", Some(&id), json!({"key": key})).await.unwrap();
    }
    let cancelled = service.call("type", Some(&id), json!({"text": "slow-5000"}));
    assert!(tokio::time::timeout(Duration::from_millis(300), cancelled).await.is_err());
    until("the outcomes are written", async || {
        let rows = service.audit().await;
        rows.iter().filter(|row| row.event == "end").count() == 12
    })
    .await;
    let rows = service.audit().await;
    let text = format!("{rows:?}");
    assert!(!text.contains(canary) && !text.contains("Y2FuYXJ5"), "{text}");
    assert!(
        text.contains(r#"{\"text\":{\"redacted\":11}}"#) || text.contains(r#"\"redacted\":11"#),
        "{text}"
    );
    assert_eq!(rows.last().unwrap().outcome.as_deref(), Some("cancelled"));
    // Every forwarded call has its row.
    let begun = rows.iter().filter(|row| row.event == "begin" && row.verb != "open_session").count();
    assert_eq!(rig.browser.asked().len(), begun);
    assert!(service.app.audit.verify().await.unwrap().intact);
}
