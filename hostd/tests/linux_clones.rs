//! The Linux host on the real kernel: a page is rendered in a clone, and then nothing of it is left.
//!
//! Each test runs in a private machine that it makes itself (see `lab`). The number of cycles is an argument:
//! `HOSTD_TEST_CYCLES=100 cargo test -p hostd --test linux_clones`.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod daemon;
mod lab;

use daemon::{Daemon, Home, create, until};
use hostd::api::{CloneInfo, CloneParams, CloneState, ListParams, StageTiming};
use hostd::client::Client;
use lab::{LIMIT, Lab, PORT, PUBLIC, Page, in_private_machine};
use std::time::{Duration, Instant};

fn cycles(usual: usize) -> usize {
    let told = std::env::var("HOSTD_TEST_CYCLES").ok();
    told.map_or(usual, |text| text.parse().expect("HOSTD_TEST_CYCLES is a number"))
}

fn home(lab: &Lab, more: &[&str]) -> Home {
    let settings = lab.settings();
    let settings: Vec<&str> = settings.iter().map(String::as_str).chain(more.iter().copied()).collect();
    Home::new(&settings)
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(work)
}

async fn destroy(client: &Client, clone: &CloneInfo) -> (Duration, Vec<StageTiming>) {
    let began = Instant::now();
    let params = CloneParams {
        name: clone.name.clone(),
        clone_id: clone.clone_id.clone().expect("an id"),
        progress_token: None,
    };
    let gone = client.destroy(params).await.unwrap_or_else(|error| panic!("destroy: {error:?}"));
    assert!(!gone.already_gone);
    (began.elapsed(), gone.stages)
}

/// Wait until hostd shows no clone and no record.
async fn until_empty(daemon: &Daemon) {
    let client = daemon.client().await;
    until("no clone is left", async || {
        client.list(ListParams::default()).await.is_ok_and(|list| list.clones.is_empty())
    })
    .await;
}

fn same(before: &[(String, String)], after: &[(String, String)]) {
    for ((what, before), (_, after)) in before.iter().zip(after) {
        assert!(before == after, "{what} before:\n{before}\nafter:\n{after}");
    }
}

#[test]
fn a_page_is_rendered_and_nothing_is_left() {
    in_private_machine("a_page_is_rendered_and_nothing_is_left", |lab| {
        let home = home(lab, &[]);
        block_on(async {
            let daemon = home.start().await;
            let client = daemon.client().await;
            let before = lab.inventory(home.path());
            let mut table: Vec<(String, Vec<f64>)> = Vec::new();
            let mut note = |stage: &str, seconds: f64| match table.iter_mut().find(|(name, _)| name == stage)
            {
                Some((_, all)) => all.push(seconds),
                None => table.push((stage.to_owned(), vec![seconds])),
            };
            for cycle in 0..cycles(20) {
                let created = client
                    .create(create(format!("cycle-{cycle}")))
                    .await
                    .unwrap_or_else(|error| panic!("create: {error:?}\n{}", home.log()));
                let clone = created.clone;
                assert_eq!(clone.state, CloneState::Ready);
                let endpoint = clone.endpoint.clone().expect("an endpoint");
                tokio::task::block_in_place(|| {
                    let mut page = Page::open(&endpoint);
                    let (title, problem) = page.load(&format!("http://{PUBLIC}:{PORT}/cycle-{cycle}"), LIMIT);
                    assert_eq!((title.as_str(), problem.as_str()), ("rendered", ""), "{}", home.log());
                    assert!(page.screenshot().len() > 1000, "a picture");
                });
                clone.stages.iter().for_each(|stage| note(&format!("create {}", stage.stage), stage.seconds));
                let (took, stages) = destroy(&client, &clone).await;
                stages.iter().for_each(|stage| note(&format!("destroy {}", stage.stage), stage.seconds));
                note("destroy in all", took.as_secs_f64());
            }
            until_empty(&daemon).await;
            for (stage, all) in &mut table {
                all.sort_by(f64::total_cmp);
                let at = |share: f64| all[((all.len() - 1) as f64 * share) as usize] * 1000.0;
                println!(
                    "{stage:<20} {:>4} times  median {:>8.1} ms  least {:>8.1}  most {:>8.1}",
                    all.len(),
                    at(0.5),
                    at(0.0),
                    at(1.0)
                );
            }
            same(&before, &lab.inventory(home.path()));
            daemon.stop().await;
        });
    });
}
