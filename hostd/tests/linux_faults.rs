//! Faults on the real kernel: each has its documented outcome and leaves nothing behind.
//!
//! `HOSTD_TEST_KILLS` is how often hostd is killed, `HOSTD_TEST_CLONES` how many clones are created at once.
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

/// The supervisor of a clone.
fn supervisor(clone: &CloneInfo) -> i32 {
    let found = fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
        let command = fs::read_to_string(entry.path().join("cmdline")).ok()?;
        (command.contains("supervise-clone") && command.contains(clone.name.as_str()))
            .then(|| entry.file_name().to_str()?.parse().ok())?
    });
    found.expect("a supervisor")
}

fn kill9(pid: i32) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL)
        .expect("it lives");
}

/// When hostd is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KillPoint {
    /// After the record was made, and some time later.
    DuringCreate,
    AfterCreate,
    /// After the caller has sent the destroy, and some time later.
    DuringDestroy,
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
        let records = || fs::read_dir(home.path().join("state/records")).unwrap().count();
        block_on(async {
            let mut daemon = home.start().await;
            let before = lab.inventory(home.path());
            // A clone that is ready outlives every death of hostd.
            let kept = made(&daemon.client().await, "kept", &home).await;
            let kills = number("HOSTD_TEST_KILLS", 12).max(3);
            let points = [KillPoint::DuringCreate, KillPoint::AfterCreate, KillPoint::DuringDestroy];
            let (mut unfinished, mut ready, mut destroyed) = (0, 0, 0);
            for (round, point) in (0..kills).zip(points.into_iter().cycle()) {
                let client = daemon.client().await;
                let id = format!("round-{round}");
                let others = records();
                let work = tokio::spawn(async move {
                    let clone = client.create(create(id)).await.ok()?.clone;
                    if point == KillPoint::DuringDestroy {
                        return client.destroy(params(&clone)).await.ok().map(|_| clone);
                    }
                    Some(clone)
                });
                // The first round kills at once, when no browser can be ready yet.
                let pause = if round == 0 { 0 } else { dice(400) };
                let made = match point {
                    KillPoint::DuringCreate => {
                        until("the record is there", async || records() > others).await;
                        tokio::time::sleep(Duration::from_millis(pause)).await;
                        daemon.kill9().await;
                        work.await.unwrap()
                    }
                    KillPoint::AfterCreate => {
                        let made = work.await.unwrap().expect("nobody disturbs this create");
                        daemon.kill9().await;
                        Some(made)
                    }
                    KillPoint::DuringDestroy => {
                        let is_made = |clone: &CloneInfo| {
                            clone.name != kept.name && clone.state != CloneState::Creating
                        };
                        until("the clone is ready or on its way out", async || {
                            work.is_finished() || clones(&daemon).await.iter().any(is_made)
                        })
                        .await;
                        tokio::time::sleep(Duration::from_millis(pause / 8)).await;
                        daemon.kill9().await;
                        work.await.unwrap()
                    }
                };
                daemon = home.start().await;
                let seen: Vec<CloneInfo> =
                    clones(&daemon).await.into_iter().filter(|clone| clone.name != kept.name).collect();
                match (point, made) {
                    // What a caller was told is true after the restart.
                    (KillPoint::DuringDestroy, Some(gone)) => {
                        destroyed += 1;
                        let left = seen.iter().filter(|clone| clone.clone_id == gone.clone_id);
                        assert!(left.clone().all(|clone| clone.state == CloneState::Quarantined), "{seen:?}");
                    }
                    (_, Some(made)) => {
                        ready += 1;
                        let found = seen.iter().find(|clone| clone.clone_id == made.clone_id);
                        assert_eq!(found.map(|clone| clone.state), Some(CloneState::Ready), "{seen:?}");
                        destroy(&daemon.client().await, &made).await;
                    }
                    // What no caller was told of is taken back, unless it was finished: then its request finds it.
                    (_, None) => {
                        unfinished += 1;
                        for clone in seen.iter().filter(|clone| clone.state == CloneState::Ready) {
                            destroy(&daemon.client().await, clone).await;
                        }
                    }
                }
                until("only the kept clone is left", async || clones(&daemon).await.len() == 1).await;
            }
            println!(
                "{kills} kills: {unfinished} calls unfinished, {ready} clones ready, {destroyed} destroyed"
            );
            assert_eq!(unfinished + ready + destroyed, kills);
            assert!(unfinished > 0, "no call was ever interrupted");
            assert!(ready >= kills / 3, "every clone that a caller was told of was kept");
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
            kill9(supervisor(&clone));
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
            destroy(&client, &clone).await;
            let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
            assert!(!mounts.contains(clone.name.as_str()), "the mounts are detached: {mounts}");
            assert!(held.metadata().unwrap().is_dir(), "whoever holds a file keeps it");
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

/// A program that an operator runs in a clone's namespaces.
fn operator(arguments: &[&str]) -> std::process::Child {
    std::process::Command::new("nsenter").args(arguments).args(["--", "/bin/sleep", "600"]).spawn().unwrap()
}

/// An operator looks at a clone with nsenter, as the documents advise: hostd never signals the operator's process.
#[test]
fn a_destroy_does_not_signal_an_operators_process() {
    in_private_machine("a_destroy_does_not_signal_an_operators_process", |lab| {
        let home = home(lab, &[]);
        block_on(async {
            let daemon = home.start().await;
            let client = daemon.client().await;
            for kill_supervisor_first in [false, true] {
                let clone = made(&client, &format!("watched-{kill_supervisor_first}"), &home).await;
                let run = home.path().join("state/run").join(clone.name.as_str());
                let orders: serde_json::Value =
                    serde_json::from_slice(&fs::read(run.join("jail")).unwrap()).unwrap();
                let uid = orders["uid"].as_u64().expect("the clone's user");
                let net = format!("--net={}", run.join("net").display());
                let browser = inside(&home, &clone)
                    .into_iter()
                    .find(|(_, command)| command.contains("--remote-debugging-pipe"))
                    .expect("a browser")
                    .0
                    .to_string();
                let mut outside = operator(&[&net]);
                // In the PID namespace of the sandbox: the kernel ends it with the namespace, and nsenter reports that.
                let mut in_namespace = operator(&["--target", &browser, "--pid", "--net"]);
                until("both have entered", async || {
                    inside(&home, &clone).values().filter(|command| command.starts_with("/bin/sleep")).count()
                        == 2
                })
                .await;
                if kill_supervisor_first {
                    kill9(supervisor(&clone));
                    until_state(&daemon, &clone, CloneState::Broken).await;
                }
                destroy(&client, &clone).await;
                assert!(outside.try_wait().unwrap().is_none(), "the operator's process lives");
                until("the kernel ended the other", async || in_namespace.try_wait().unwrap().is_some())
                    .await;
                let of_clone = users().into_iter().filter(|(_, user)| *user == uid).collect::<Vec<_>>();
                assert!(of_clone.is_empty(), "processes of the clone's user: {of_clone:?}");
                outside.kill().unwrap();
                outside.wait().unwrap();
            }
            until_empty(&daemon).await;
            daemon.stop().await;
        });
    });
}

/// The running processes and their users.
fn users() -> Vec<(String, u64)> {
    let entries =
        fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let user = |pid: String| {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))
            .ok()
            .filter(|text| !text.contains("State:\tZ"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        Some((pid, line.split_whitespace().next()?.parse().ok()?))
    };
    entries.filter(|name| name.parse::<u32>().is_ok()).filter_map(user).collect()
}

/// Work on a blocking thread goes on after its step has timed out. Its late result must not be overlooked.
#[test]
fn work_that_ends_after_its_timeout_leaves_nothing() {
    in_private_machine("work_that_ends_after_its_timeout_leaves_nothing", |lab| {
        let home = home(lab, &["lifecycle.step_timeout_seconds=1"]);
        let lock = || {
            let path = lab.templates.join("browser/.lock");
            let file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(path).unwrap();
            nix::fcntl::Flock::lock(file, nix::fcntl::FlockArg::LockExclusive)
                .map_err(|(_, error)| error)
                .unwrap()
        };
        block_on(async {
            let daemon = home.start().await;
            let before = lab.inventory(home.path());
            let mut made_late = 0;
            // A step waits one second for its call, and one more for work that the call left behind. So does the rollback.
            for (number, held) in [1300, 1700, 2300, 2700, 3300].into_iter().enumerate() {
                let template = lock();
                let client = daemon.client().await;
                let work = tokio::spawn(async move { client.create(create(format!("late-{number}"))).await });
                tokio::time::sleep(Duration::from_millis(held)).await;
                let had_failed = work.is_finished();
                drop(template);
                let error = work.await.unwrap().expect_err("its storage took too long");
                // From the moment that hostd has no record of the clone, nothing of it may appear.
                until("hostd has no record", async || {
                    fs::read_dir(home.path().join("state/records")).unwrap().count() == 0
                })
                .await;
                let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
                assert!(!mounts.contains("browsertask"), "held for {held} ms: {error:?}\n{mounts}");
                made_late += usize::from(!had_failed);
            }
            assert!(made_late > 0, "no work ended while hostd waited for it");
            until_empty(&daemon).await;
            same(&before, &lab.inventory(home.path()));
            daemon.stop().await;
        });
    });
}
