//! Every refusal names its limit and a time.

use crate::rig::{Rig, caller};
use crate::support::database::Database;
use controlplane::error::{ApiError, ErrorCode};
use serde_json::json;
use std::time::Duration;

fn check(error: ApiError, code: ErrorCode, limit: &str) {
    assert!(error.is(code), "{error}");
    assert!(error.message().contains(limit), "{error}");
    assert!(error.retry_after_seconds().is_some(), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_of_a_tenant_and_of_all_are_limited_and_an_end_lets_the_next_one_in() {
    let mut rig = Rig::new().await;
    rig.config.limits.sessions_per_tenant = 1;
    rig.config.limits.sessions = 2;
    rig.config.limits.queue_wait_seconds = 1;
    let service = rig.app().await;
    let (b, c) = (service.as_caller(caller(1, "b")), service.as_caller(caller(2, "c")));
    let first = service.open(json!({})).await;
    let error = service.call("open_session", None, json!({})).await.unwrap_err();
    check(error, ErrorCode::QueueTimeout, "limits.sessions_per_tenant");
    let _second = b.open(json!({})).await;
    let error = c.call("open_session", None, json!({})).await.unwrap_err();
    check(error, ErrorCode::QueueTimeout, "limits.sessions)");
    let close = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        service.call("close_session", Some(&first), json!({})).await.unwrap();
    };
    let (opened, ()) = tokio::join!(c.call("open_session", None, json!({})), close);
    opened.unwrap();
    assert_eq!(rig.hostd.ready().await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rate_of_opens_is_limited_for_each_tenant() {
    let mut rig = Rig::new().await;
    rig.config.limits.opens_per_minute = 1;
    rig.config.limits.open_burst = 2;
    let service = rig.app().await;
    service.open(json!({})).await;
    service.open(json!({})).await;
    let error = service.call("open_session", None, json!({})).await.unwrap_err();
    let wait = error.retry_after_seconds().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    check(error, ErrorCode::OpenRate, "limits.opens_per_minute");
    service.as_caller(caller(1, "other")).open(json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_host_is_waited_for() {
    let mut rig = Rig::with(&["server.max_clones=1"], Database::sqlite()).await;
    rig.config.limits.queue_wait_seconds = 2;
    let service = rig.app().await;
    let first = service.open(json!({})).await;
    let error = service.call("open_session", None, json!({})).await.unwrap_err();
    check(error, ErrorCode::QueueTimeout, "host_full");
    let close = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        service.call("close_session", Some(&first), json!({})).await.unwrap();
    };
    let (opened, ()) = tokio::join!(service.call("open_session", None, json!({})), close);
    opened.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_session_are_bounded() {
    let mut rig = Rig::new().await;
    rig.config.limits.calls_per_session = 1;
    let service = rig.app().await;
    let id = service.open(json!({})).await;
    let calls = (0..9).map(|number| {
        let (service, id) = (service.clone(), id.clone());
        let params = json!({"tab": format!("t{number}"), "text": "slow-300"});
        tokio::spawn(async move { service.call("type", Some(&id), params).await })
    });
    let answers = futures_util::future::join_all(calls).await;
    let refused: Vec<_> = answers.into_iter().filter_map(|answer| answer.unwrap().err()).collect();
    assert_eq!(refused.len(), 1, "eight run or wait: {refused:?}");
    check(refused[0].clone(), ErrorCode::SessionCalls, "limits.calls_per_session");
}
