//! The Linux host on the real kernel: a page is rendered in a clone, and after the destroy nothing of it is left.
//!
//! Each test runs in a private machine that it makes itself (see `lab`). The number of cycles is an argument:
//! `HOSTD_TEST_CYCLES=100 cargo test -p hostd --test linux_clones`.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod daemon;
mod lab;
mod life;

use daemon::until;
use hostd::api::CloneState;
use lab::{LIMIT, PORT, PUBLIC, Page, in_private_machine};
use life::{block_on, home, made, params, same, until_empty};
use std::fs;
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
            // Its supervisors are the daemon's children.
            until("no child is left", async || lab::zombies_of(daemon.pid()).is_empty()).await;
            same(&before, &lab.inventory(home.path()));
            daemon.stop().await;
        });
    });
}

/// Where the mounts are that a process sees.
fn mounts(process: &str) -> Vec<String> {
    let all = fs::read_to_string(format!("/proc/{process}/mountinfo")).unwrap_or_default();
    all.lines().filter_map(|line| line.split(' ').nth(4)).map(str::to_owned).collect()
}

/// Otherwise a create would slow down with the number of clones, and a clone could hold mounts that another's destroy unmounts.
#[test]
fn a_clone_sees_no_mount_of_another() {
    in_private_machine("a_clone_sees_no_mount_of_another", |lab| {
        let before = mounts("self");
        let home = home(lab, &[]);
        block_on(async {
            let daemon = home.start().await;
            let client = daemon.client().await;
            let first = made(&client, "first", &home).await;
            let second = made(&client, "second", &home).await;
            let names = [first.name.as_str(), second.name.as_str()];
            let sees = |process: &str, name: &str| mounts(process).iter().any(|place| place.contains(name));
            let mut inside = 0;
            for entry in fs::read_dir("/proc").unwrap().flatten() {
                let process = entry.file_name().into_string().unwrap();
                let line = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
                // hostd itself, with its supervisors, and this test are on the host.
                let ours =
                    ["hostd\0supervise-clone", "hostd\0forward-names", "hostd\0--config", "linux_clones"];
                if process.parse::<u32>().is_ok() && !ours.iter().any(|word| line.contains(word)) {
                    inside += 1;
                    assert!(!names.iter().all(|name| sees(&process, name)), "{line:?} sees both clones");
                    // It holds no mount namespace with other clones' mounts either.
                    let held = fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten();
                    let held = held.filter_map(|entry| fs::read_link(entry.path()).ok());
                    let ways: Vec<_> =
                        held.filter(|file| file.to_string_lossy().starts_with("mnt:")).collect();
                    assert!(ways.is_empty(), "{line:?} holds {ways:?}");
                }
            }
            assert!(inside > 6, "processes of two clones");
            assert!(names.iter().all(|name| sees("self", name)), "on the host both are seen");
            // A hostd that finds clones keeps the folders' mounts, and the last one unmounts them.
            let with_two = mounts("self");
            daemon.kill9().await;
            let daemon = home.start().await;
            let client = daemon.client().await;
            let third = made(&client, "third", &home).await;
            for clone in [first, second, third] {
                client.destroy(params(&clone)).await.expect("a destroy");
            }
            until_empty(&daemon).await;
            assert_eq!(mounts("self").len() + 6, with_two.len());
            daemon.stop().await;
            assert_eq!(mounts("self"), before);
        });
    });
}
