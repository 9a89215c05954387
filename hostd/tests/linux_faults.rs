//! The Linux host when things go wrong, on the real kernel: each with its documented outcome, and nothing left behind.
//!
//! `HOSTD_TEST_KILLS` is how often hostd is killed, `HOSTD_TEST_CLONES` how many clones are made at once.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod daemon;
mod lab;
mod life;

use daemon::{Daemon, Home, create, until};
use hostd::api::{CloneInfo, CloneState, Limits};
use lab::{LIMIT, PORT, PUBLIC, Page, in_private_machine, run};
use life::{block_on, clones, code, destroy, home, made, made_as, params, same, until_empty};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

fn number(variable: &str, usual: u64) -> u64 {
    let told = std::env::var(variable).ok();
    told.map_or(usual, |text| text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

async fn until_state(daemon: &Daemon, clone: &CloneInfo, state: CloneState) {
    until(&format!("{} is {state:?}", clone.name), async || {
        clones(daemon).await.iter().any(|seen| seen.name == clone.name && seen.state == state)
    })
    .await;
}

fn title(clone: &CloneInfo) -> String {
    let endpoint = clone.endpoint.clone().expect("an endpoint");
    tokio::task::block_in_place(|| Page::open(&endpoint).load(&format!("http://{PUBLIC}:{PORT}/"), LIMIT).0)
}

/// The processes in a clone's network namespace, by their numbers, with their names.
fn inside(home: &Home, clone: &CloneInfo) -> BTreeMap<i32, String> {
    let pin = home.path().join("state/run").join(clone.name.as_str()).join("net");
    let wanted = fs::metadata(pin).expect("the namespace").ino();
    let mut found = BTreeMap::new();
    for entry in fs::read_dir("/proc").expect("proc").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if fs::metadata(entry.path().join("ns/net")).is_ok_and(|meta| meta.ino() == wanted) {
            let command = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            found.insert(pid, command.replace('\0', " "));
        }
    }
    found
}

fn kill9(pid: i32) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL)
        .expect("it lives");
}

#[test]
fn hostd_is_killed_at_random_points() {
    in_private_machine("hostd_is_killed_at_random_points", |lab| {
        let home = home(lab, &[]);
        let mut random = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        println!("seed {random}");
        let mut dice = move |sides: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % sides
        };
        block_on(async {
            let daemon = home.start().await;
            let before = lab.inventory(home.path());
            // A clone that is ready outlives every death of hostd.
            let kept = made(&daemon.client().await, "kept", &home).await;
            let mut daemon = daemon;
            let (mut creating, mut ready, mut gone) = (0, 0, 0);
            let kills = number("HOSTD_TEST_KILLS", 12);
            for round in 0..kills {
                let client = daemon.client().await;
                let id = format!("round-{round}");
                let work = tokio::spawn(async move {
                    let clone = client.create(create(id)).await.ok()?.clone;
                    client.destroy(params(&clone)).await.ok()
                });
                tokio::time::sleep(Duration::from_millis(dice(1100))).await;
                daemon.kill9().await;
                let _ = work.await;
                daemon = home.start().await;
                for clone in clones(&daemon).await.iter().filter(|clone| clone.name != kept.name) {
                    match clone.state {
                        CloneState::Ready => {
                            ready += 1;
                            destroy(&daemon.client().await, clone).await;
                        }
                        CloneState::Quarantined => gone += 1,
                        _ => creating += 1,
                    }
                }
            }
            println!("{kills} kills: {creating} clones were on the way, {ready} ready, {gone} gone already");
            assert_eq!(title(&kept), "rendered", "the clone that was ready works");
            destroy(&daemon.client().await, &kept).await;
            until_empty(&daemon).await;
            same(&before, &lab.inventory(home.path()));
            daemon.stop().await;
        });
    });
}

#[test]
fn every_fault_has_its_outcome() {
    in_private_machine("every_fault_has_its_outcome", |lab| {
        let home = home(lab, &[]);
        block_on(async {
            let daemon = home.start().await;
            let client = daemon.client().await;
            let before = lab.inventory(home.path());

            // The browser crashes: the clone is broken, its owner decides.
            let clone = made(&client, "crash", &home).await;
            let browser = inside(&home, &clone)
                .into_iter()
                .find(|(_, command)| command.contains("--remote-debugging-pipe"));
            kill9(browser.expect("a browser").0);
            until_state(&daemon, &clone, CloneState::Broken).await;
            destroy(&client, &clone).await;

            // The supervisor is killed: everything inside goes with it.
            let clone = made(&client, "supervisor", &home).await;
            let processes = inside(&home, &clone);
            let supervisor = fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
                let command = fs::read_to_string(entry.path().join("cmdline")).ok()?;
                (command.contains("supervise-clone") && command.contains(clone.name.as_str()))
                    .then(|| entry.file_name().to_str()?.parse().ok())?
            });
            kill9(supervisor.expect("a supervisor"));
            until("the sandbox ends with its supervisor", async || inside(&home, &clone).is_empty()).await;
            assert!(processes.len() > 1, "{processes:?}");
            until_state(&daemon, &clone, CloneState::Broken).await;
            destroy(&client, &clone).await;

            // The clone is at its quota: its writes fail, the host's do not, and it goes as any other.
            let mut small = create("quota");
            small.limits = Some(Limits { disk_bytes: Some(64 << 20), ..Limits::default() });
            let clone = made_as(&client, small, &home).await;
            let file = home.path().join("clones").join(clone.name.as_str()).join("downloads/large");
            let full = fs::write(&file, vec![1; 80 << 20]).expect_err("more than the quota");
            assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
            destroy(&client, &clone).await;

            // The deadline passes.
            let mut short = create("deadline");
            short.deadline_seconds = Some(3);
            client.create(short).await.unwrap();
            until_empty(&daemon).await;

            // The template is missing: refused before anything is made.
            let mut other = create("template");
            other.snapshot = Some("nowhere".to_owned().try_into().unwrap());
            assert_eq!(code(&client.create(other).await.unwrap_err()), "template_unusable");

            // A stubborn file user: the destroy does not wait for ever, and what is left goes later.
            let clone = made(&client, "busy", &home).await;
            let held =
                fs::File::open(home.path().join("clones").join(clone.name.as_str()).join("media")).unwrap();
            let began = Instant::now();
            destroy(&client, &clone).await;
            println!("a clone whose files were in use was destroyed in {:?}", began.elapsed());
            drop(held);

            until_empty(&daemon).await;
            same(&before, &lab.inventory(home.path()));

            // The disk is full: no record, no clone; and with room again there is one.
            run(&format!("mount -t tmpfs -o size=16k lab {}/state/records", home.path().display()));
            let filler = home.path().join("state/records/filler");
            let _ = fs::write(&filler, vec![1; 64 << 10]);
            let error = client.create(create("full")).await.unwrap_err();
            assert_eq!(code(&error), "state_unavailable", "{error:?}");
            run(&format!("umount {}/state/records", home.path().display()));
            same(&before, &lab.inventory(home.path()));
            daemon.stop().await;
        });
    });
}

#[test]
fn two_hostd_do_not_disturb_each_other() {
    in_private_machine("two_hostd_do_not_disturb_each_other", |lab| {
        let one = home(lab, &[]);
        let other = [
            "pool.prefix=other",
            "pool.interface_prefix=ot",
            "pool.subnet=10.99.0.0/22",
            "pool.subnet6=fd99::/64",
            "egress.table=other",
            // Each test has a thousand ids, and the first pool uses forty.
            &format!("pool.uid_base={}", lab::uid_base() + 500),
        ];
        let two = home(lab, &other);
        block_on(async {
            let (first, second) = (one.start().await, two.start().await);
            let before = lab.inventory(one.path());
            let (a, b) =
                (made(&first.client().await, "a", &one).await, made(&second.client().await, "b", &two).await);
            assert_ne!(a.ip, b.ip);
            destroy(&first.client().await, &a).await;
            first.kill9().await;
            let first = one.start().await;
            assert_eq!(title(&b), "rendered", "the other's clone works on");
            assert_eq!(clones(&second).await.len(), 1);
            until_empty(&first).await;

            // A second one on the same folder is refused and disturbs nothing.
            let refused = one.command().output().expect("hostd");
            let said = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert_eq!(refused.status.code(), Some(7), "{said}");
            destroy(&second.client().await, &b).await;
            until_empty(&second).await;
            same(&before, &lab.inventory(one.path()));
            first.stop().await;
            second.stop().await;
        });
    });
}

#[test]
fn many_clones_at_once() {
    in_private_machine("many_clones_at_once", |lab| {
        let home = home(lab, &["server.max_clones=60", "lifecycle.step_timeout_seconds=120"]);
        let count = number("HOSTD_TEST_CLONES", 30);
        block_on(async {
            let daemon = home.start().await;
            let client = daemon.client().await.with_timeout(Duration::from_secs(200));
            let before = lab.inventory(home.path());
            let began = Instant::now();
            let work: Vec<_> = (0..count)
                .map(|number| {
                    let client = client.clone();
                    tokio::spawn(async move { client.create(create(format!("many-{number}"))).await })
                })
                .collect();
            let mut all = Vec::new();
            for one in work {
                all.push(
                    one.await.unwrap().unwrap_or_else(|error| panic!("{error:?}\n{}", home.log())).clone,
                );
            }
            println!("{count} clones at once: {:?}", began.elapsed());
            assert_eq!(
                clones(&daemon).await.iter().filter(|clone| clone.state == CloneState::Ready).count() as u64,
                count
            );
            let began = Instant::now();
            futures_util::future::join_all(all.iter().map(|clone| destroy(&client, clone))).await;
            println!("{count} destroyed at once: {:?}", began.elapsed());
            until_empty(&daemon).await;
            same(&before, &lab.inventory(home.path()));
            daemon.stop().await;
        });
    });
}
