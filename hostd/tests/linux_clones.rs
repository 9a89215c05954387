//! The Linux host on the real kernel: a page is rendered in a clone, and then nothing of it is left.
//!
//! Each test runs in a private machine that it makes itself (see `lab`). The number of cycles is an argument:
//! `HOSTD_TEST_CYCLES=100 cargo test -p hostd --test linux_clones`.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod daemon;
mod lab;
mod life;

use hostd::api::CloneState;
use lab::{LIMIT, PORT, PUBLIC, Page, in_private_machine};
use life::{block_on, home, made, params, same, until_empty};
use std::time::Instant;

fn cycles(usual: usize) -> usize {
    let told = std::env::var("HOSTD_TEST_CYCLES").ok();
    told.map_or(usual, |text| text.parse().expect("HOSTD_TEST_CYCLES is a number"))
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
                let clone = made(&client, &format!("cycle-{cycle}"), &home).await;
                assert_eq!(clone.state, CloneState::Ready);
                let endpoint = clone.endpoint.clone().expect("an endpoint");
                tokio::task::block_in_place(|| {
                    let mut page = Page::open(&endpoint);
                    let (title, problem) = page.load(&format!("http://{PUBLIC}:{PORT}/cycle-{cycle}"), LIMIT);
                    assert_eq!((title.as_str(), problem.as_str()), ("rendered", ""), "{}", home.log());
                    assert!(page.screenshot().len() > 1000, "a picture");
                });
                clone.stages.iter().for_each(|stage| note(&format!("create {}", stage.stage), stage.seconds));
                let began = Instant::now();
                let gone = client.destroy(params(&clone)).await.expect("a destroy");
                let took = began.elapsed();
                gone.stages.iter().for_each(|stage| note(&format!("destroy {}", stage.stage), stage.seconds));
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
