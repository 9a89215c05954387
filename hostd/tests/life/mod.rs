//! A clone's life as the tests of the real host need it: a daemon's home, create, destroy, and what is left.

// Every test file uses its own share of this.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use crate::daemon::{Daemon, Home, create, until};
use crate::lab::Lab;
use hostd::api::{CloneInfo, CreateParams, DestroyParams, ListParams};
use hostd::client::{Client, ClientError};

/// A home for a daemon that drives this machine, with these settings on top.
pub fn home(lab: &Lab, more: &[&str]) -> Home {
    let settings = lab.settings();
    let settings: Vec<&str> = settings.iter().map(String::as_str).chain(more.iter().copied()).collect();
    Home::new(&settings)
}

pub fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(work)
}

pub async fn made(client: &Client, id: &str, home: &Home) -> CloneInfo {
    made_as(client, create(id), home).await
}

pub async fn made_as(client: &Client, params: CreateParams, home: &Home) -> CloneInfo {
    let created = client.create(params).await;
    created.unwrap_or_else(|error| panic!("create: {error:?}\n{}", home.log())).clone
}

pub fn params(clone: &CloneInfo) -> DestroyParams {
    let clone_id = clone.clone_id.clone().expect("an id");
    DestroyParams::new(clone.name.clone(), clone_id)
}

pub async fn destroy(client: &Client, clone: &CloneInfo) {
    let gone = client.destroy(params(clone)).await.unwrap_or_else(|error| panic!("destroy: {error:?}"));
    assert!(!gone.already_gone);
}

pub async fn clones(daemon: &Daemon) -> Vec<CloneInfo> {
    daemon.client().await.list(ListParams::default()).await.expect("a list").clones
}

/// Wait until hostd shows no clone and no record.
pub async fn until_empty(daemon: &Daemon) {
    until("no clone is left", async || clones(daemon).await.is_empty()).await;
}

/// Nothing came and nothing went.
pub fn same(before: &[(String, String)], after: &[(String, String)]) {
    for ((what, before), (_, after)) in before.iter().zip(after) {
        assert!(before == after, "{what} before:\n{before}\nafter:\n{after}");
    }
}

/// The error's code.
pub fn code(error: &ClientError) -> String {
    let error = error.rpc().unwrap_or_else(|| panic!("{error:?}"));
    serde_json::to_value(error.data.code).expect("a word").as_str().expect("a word").to_owned()
}
