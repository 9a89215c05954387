//! What becomes of sessions when the service or hostd is started again.

use crate::rig::{Rig, until};
use crate::support::database::Database;
use controlplane::error::ErrorCode;
use serde_json::json;
use std::time::Duration;

async fn restarted_sessions_are_usable(rig: Rig) {
    let mut rig = rig;
    let service = rig.app().await;
    let (kept, lost) = (service.open(json!({"labels": {"a": "b"}})).await, service.open(json!({})).await);
    service.stop().await;
    rig.hostd.destroy(&lost).await;
    let service = rig.app().await;
    assert_eq!(service.state(&kept).await.0, "open");
    service.call("navigate", Some(&kept), json!({"url": "https://example.org/"})).await.unwrap();
    assert_eq!(service.until_closed(&lost).await, "clone_lost");

    // hostd alone.
    rig.hostd.kill();
    assert_eq!(service.state(&kept).await.0, "open");
    let error = service.call("open_session", None, json!({})).await.unwrap_err();
    assert!(error.is(ErrorCode::HostUnavailable), "{error}");
    service.call("url", Some(&kept), json!({})).await.unwrap();
    rig.hostd.start().await;
    until("sessions can be opened again", async || {
        service.call("open_session", None, json!({})).await.is_ok()
    })
    .await;

    // Both, and hostd comes later.
    rig.hostd.kill();
    service.stop().await;
    let service = rig.app().await;
    assert_eq!(service.state(&kept).await.0, "open");
    rig.hostd.start().await;
    until("the session is usable again", async || service.call("url", Some(&kept), json!({})).await.is_ok())
        .await;
    service.call("close_session", Some(&kept), json!({})).await.unwrap();
    until("no session's clone is left but the new one's", async || rig.hostd.ready().await.len() == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_found_again_on_sqlite() {
    restarted_sessions_are_usable(Rig::new().await).await;
}

#[test]
fn sessions_are_found_again_on_postgres() {
    // The server is started and ended by this thread, not by one of the runtime.
    let database = Database::postgres();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async { restarted_sessions_are_usable(Rig::with(&[], database).await).await });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_made_another_clone_ends_the_session_and_takes_the_clone_away() {
    let mut rig = Rig::new().await;
    rig.config.sessions.lease_seconds = 4;
    let service = rig.app().await;
    let id = service.open(json!({})).await;
    // As if another clone had been there: the stored id is not that of the host's clone.
    service.stop().await;
    rig.database.sql(&format!("UPDATE sessions SET clone_id = '{}' WHERE id = '{id}'", "0".repeat(32)));
    let service = rig.app().await;
    assert_eq!(service.until_closed(&id).await, "clone_lost");
    rig.hostd.until_only(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_that_the_restart_interrupted_is_closed_and_leaves_no_clone() {
    let mut rig = Rig::new().await;
    let service = rig.app().await;
    let id = service.open(json!({})).await;
    service.stop().await;
    rig.database.sql(&format!(
        "UPDATE sessions SET state = 'opening', clone_id = NULL, clone_name = NULL, started_at = NULL WHERE id = '{id}'"
    ));
    rig.hostd.kill();
    rig.hostd.start().await;
    let service = rig.app().await;
    assert_eq!(service.until_closed(&id).await, "restart");
    rig.hostd.until_only(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_waits_for_nothing_and_keeps_sessions() {
    let rig = Rig::new().await;
    let service = rig.app().await;
    let id = service.open(json!({})).await;
    let call = tokio::spawn({
        let (service, id) = (service.clone(), id.clone());
        async move { service.call("type", Some(&id), json!({"text": "slow-60000"})).await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    tokio::time::timeout(Duration::from_secs(20), service.stop())
        .await
        .expect("the stop does not wait for the call");
    call.abort();
    assert!(rig.hostd.ready().await.contains(&id));
}
