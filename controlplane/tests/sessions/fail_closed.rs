//! Whatever fails, the caller gets a typed error, and nothing is forwarded that is not in the audit log.

use crate::rig::{Rig, Service, until};
use controlplane::error::ErrorCode;
use serde_json::json;
use std::time::{Duration, Instant};

/// Every forwarded call has a committed row.
async fn nothing_unaudited(rig: &Rig, service: &Service) {
    let rows = service.audit().await;
    let begun = rows
        .iter()
        .filter(|row| row.event == "begin" && row.session.is_some() && row.verb != "close_session");
    let (begun, asked) = (begun.count(), rig.browser.asked().len());
    assert!(asked <= begun, "{asked} calls were forwarded, {begun} are in the log");
    assert!(service.app.audit.verify().await.unwrap().intact);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_database_nothing_is_done_except_taking_away() {
    let mut rig = Rig::new().await;
    rig.config.store.timeout_seconds = 1;
    rig.database.config.timeout_seconds = 1;
    let service = rig.app().await;
    let (id, other) = (service.open(json!({})).await, service.open(json!({})).await);
    service.call("url", Some(&id), json!({})).await.unwrap();
    let asked = rig.browser.asked().len();
    rig.database.fail();
    for (verb, params) in [("click", json!({"x": 1, "y": 1})), ("screenshot", json!({}))] {
        let error = service.call(verb, Some(&id), params).await.unwrap_err();
        assert!(error.is(ErrorCode::AuditUnavailable), "{verb}: {error}");
        assert!(error.retry_after_seconds().is_some());
    }
    let error = service.call("open_session", None, json!({})).await.unwrap_err();
    assert!(error.is(ErrorCode::AuditUnavailable), "{error}");
    assert!(service.app.cdp(&service.me, &id).await.unwrap_err().is(ErrorCode::AuditUnavailable));
    assert_eq!(rig.browser.asked().len(), asked, "nothing was forwarded");

    let began = Instant::now();
    let closed = service.call("close_session", Some(&id), json!({})).await.unwrap();
    assert_eq!(closed["close_reason"], "requested");
    assert!(began.elapsed() < Duration::from_secs(30));
    rig.hostd.until_only(&[&other]).await;

    rig.database.heal();
    until("the service works again", async || service.call("url", Some(&other), json!({})).await.is_ok())
        .await;
    until("the end of the session is written", async || {
        let state = rig.database.sql(&format!("SELECT state, close_reason FROM sessions WHERE id = '{id}'"));
        state == "closed|requested"
    })
    .await;
    let sql = format!(
        "SELECT COUNT(*) FROM audit WHERE session = '{id}' AND verb = 'close_session' AND event = 'end'"
    );
    until("the close is in the audit log", async || rig.database.sql(&sql) == "1").await;
    nothing_unaudited(&rig, &service).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_hostd_sessions_stay_usable_and_closing_goes_on_when_it_is_back() {
    let mut rig = Rig::new().await;
    let service = rig.app().await;
    let id = service.open(json!({})).await;
    rig.hostd.kill();
    service.call("url", Some(&id), json!({})).await.unwrap();
    let error = service.call("open_session", None, json!({})).await.unwrap_err();
    assert!(error.is(ErrorCode::HostUnavailable), "{error}");
    let close = tokio::spawn({
        let (service, id) = (service.clone(), id.clone());
        async move { service.call("close_session", Some(&id), json!({})).await }
    });
    until("the session is unusable", async || service.call("url", Some(&id), json!({})).await.is_err()).await;
    rig.hostd.start().await;
    assert_eq!(close.await.unwrap().unwrap()["close_reason"], "requested");
    rig.hostd.until_only(&[]).await;
    nothing_unaudited(&rig, &service).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_that_hangs_ends_in_a_timeout() {
    let rig = Rig::new().await;
    let service = rig.app().await;
    let id = service.open(json!({})).await;
    rig.browser.hang(true);
    let began = Instant::now();
    let error =
        service.call("click", Some(&id), json!({"x": 1, "y": 1, "timeout_ms": 500})).await.unwrap_err();
    assert!(error.is(ErrorCode::Timeout), "{error}");
    assert!(began.elapsed() < Duration::from_secs(30));
    rig.browser.hang(false);
    service.call("click", Some(&id), json!({"x": 1, "y": 1})).await.unwrap();
    until("the outcome is written", async || {
        service.audit().await.iter().any(|row| row.outcome.as_deref() == Some("timeout"))
    })
    .await;
    nothing_unaudited(&rig, &service).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clone_that_is_killed_under_an_action_ends_the_action_and_the_session() {
    let rig = Rig::new().await;
    let service = rig.app().await;
    let id = service.open(json!({})).await;
    rig.browser.hang(true);
    let call = tokio::spawn({
        let (service, id) = (service.clone(), id.clone());
        async move { service.call("click", Some(&id), json!({"x": 1, "y": 1, "timeout_ms": 60_000})).await }
    });
    until("the call was forwarded", async || rig.browser.asked().len() == 1).await;
    rig.hostd.destroy(&id).await;
    let error = call.await.unwrap().unwrap_err();
    assert!(error.is(ErrorCode::SessionClosed) && error.message().contains("clone_lost"), "{error}");
    assert_eq!(service.until_closed(&id).await, "clone_lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_service_that_is_gone_ends_the_session_after_a_while() {
    let rig = Rig::new().await;
    let service = rig.app().await;
    let id = service.open(json!({})).await;
    service.call("url", Some(&id), json!({})).await.unwrap();
    rig.browser.end();
    until("the browser is gone", async || {
        let error = service.call("url", Some(&id), json!({"timeout_ms": 1000})).await.err();
        error.is_some_and(|error| error.is(ErrorCode::BrowserUnavailable))
    })
    .await;
    assert_eq!(service.until_closed(&id).await, "browser_lost");
    rig.hostd.until_only(&[]).await;
    nothing_unaudited(&rig, &service).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn evidence_that_cannot_be_written_is_not_lost_silently() {
    let mut rig = Rig::new().await;
    rig.config.recording.quota_bytes = 150;
    let service = rig.app().await;
    let audited = service.open(json!({"record": "audit"})).await;
    let plain = service.open(json!({"record": "off"})).await;
    // Two pictures of 70 bytes fit.
    service.call("screenshot", Some(&audited), json!({})).await.unwrap();
    service.call("screenshot", Some(&audited), json!({})).await.unwrap();
    let error = service.call("screenshot", Some(&audited), json!({})).await.unwrap_err();
    assert!(error.is(ErrorCode::RecordingQuota), "{error}");
    service.call("screenshot", Some(&plain), json!({})).await.unwrap();

    // A folder that cannot be written.
    rig.config.recording.quota_bytes = 1 << 30;
    service.stop().await;
    let service = rig.app().await;
    let folder = rig.config.recording.folder.join("default").join(&audited);
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::write(&folder, "in the way").unwrap();
    let error = service.call("screenshot", Some(&audited), json!({})).await.unwrap_err();
    assert!(error.is(ErrorCode::RecordingFailed), "{error}");
    let error = service
        .call("click", Some(&audited), json!({"x": 1, "y": 1, "after_screenshot": true}))
        .await
        .unwrap_err();
    assert!(error.is(ErrorCode::RecordingFailed), "{error}");
    service.call("click", Some(&audited), json!({"x": 1, "y": 1})).await.unwrap();
    nothing_unaudited(&rig, &service).await;
}
