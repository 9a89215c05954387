//! The warm pool on the real kernel: members are frozen, work after the thaw, and pass nothing from one task to the next.
//!
//! Each test runs in a private machine that it makes itself (see `lab`). `HOSTD_TEST_CYCLES` sets the number of tasks.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod daemon;
mod lab;

use daemon::{Daemon, Home, create, until};
use hostd::api::{CloneInfo, CreateParams, DestroyParams, Launch, ListParams, PoolStatus, StatusParams};
use hostd::client::Client;
use lab::{LIMIT, Lab, PORT, PUBLIC, Page, in_private_machine};
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn home(lab: &Lab, more: &[&str]) -> Home {
    let settings = lab.settings();
    let settings: Vec<&str> = settings.iter().map(String::as_str).chain(more.iter().copied()).collect();
    Home::new(&settings)
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(work)
}

async fn pool(client: &Client) -> PoolStatus {
    client.status(StatusParams::default()).await.unwrap().warm_pool.expect("a warm pool")
}

/// Wait until the pool is full.
async fn filled(home: &Home, client: &Client) -> PoolStatus {
    let full = async || {
        let pool = pool(client).await;
        pool.members.len() as u64 == pool.size * pool.flavors.len() as u64
    };
    tokio::time::timeout(daemon::PATIENCE, until("the pool is full", full))
        .await
        .unwrap_or_else(|_| panic!("{}", home.log()));
    pool(client).await
}

/// Create a clone, which must come from the pool.
async fn claim(home: &Home, client: &Client, wanted: CreateParams) -> CloneInfo {
    let made = client.create(wanted).await.unwrap_or_else(|error| panic!("{error:?}\n{}", home.log()));
    assert_eq!(made.clone.launch, Some(Launch::Warm), "{}", home.log());
    made.clone
}

async fn destroy(client: &Client, clone: &CloneInfo) {
    let clone_id = clone.clone_id.clone().unwrap();
    client.destroy(DestroyParams::new(clone.name.clone(), clone_id)).await.unwrap();
}

fn slot_number(name: &str) -> u32 {
    name.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().unwrap()
}

/// The processes of a clone: those of its user.
fn processes(name: &str) -> Vec<u32> {
    let uid = lab::uid_base() + slot_number(name);
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with("Uid:")).unwrap_or_default();
        line.split_whitespace().nth(1) == Some(&uid.to_string()) && !status.contains("State:\tZ")
    })
    .collect()
}

/// State and processor time of a process.
fn state(pid: u32) -> (String, u64) {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    (fields[0].to_owned(), fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap())
}

fn title(endpoint: &str) -> (String, String) {
    Page::open(endpoint).load(&format!("http://{PUBLIC}:{PORT}/"), LIMIT)
}

fn same(before: &[(String, String)], after: &[(String, String)]) {
    for ((what, before), (_, after)) in before.iter().zip(after) {
        assert!(before == after, "{what} before:\n{before}\nafter:\n{after}");
    }
}

#[test]
fn members_stand_still_and_wake_up_well() {
    in_private_machine("members_stand_still_and_wake_up_well", |lab| {
        let home = home(lab, &["pool.size=2", "pool.refill_percent=100"]);
        block_on(async {
            let daemon = home.start().await;
            let client = daemon.client().await;
            let members = filled(&home, &client).await.members;
            let frozen: Vec<u32> =
                members.iter().flat_map(|member| processes(member.name.as_str())).collect();
            assert!(frozen.len() >= 4, "two browsers: {frozen:?}");
            let before: Vec<_> = frozen.iter().map(|pid| state(*pid)).collect();
            assert!(before.iter().all(|(state, _)| state == "T"), "{before:?}");
            tokio::time::sleep(Duration::from_secs(3)).await;
            let after: Vec<_> = frozen.iter().map(|pid| state(*pid)).collect();
            assert_eq!(before, after, "not one tick of a processor");

            let clone = claim(&home, &client, create("task")).await;
            println!("stages {:?}", clone.stages);
            let seen = tokio::task::block_in_place(|| title(clone.endpoint.as_ref().unwrap()));
            assert_eq!(seen, ("rendered".to_owned(), String::new()), "{}", home.log());
            assert!(processes(clone.name.as_str()).iter().all(|pid| state(*pid).0 != "T"));

            // A browser that dies while it is frozen is noticed at the claim, and another member is handed out.
            let waiting = filled(&home, &client).await.members;
            let doomed = waiting.iter().min_by_key(|member| member.seconds_left).unwrap().name.clone();
            let pids = processes(doomed.as_str());
            for pid in pids {
                let pid = nix::unistd::Pid::from_raw(pid.try_into().unwrap());
                let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
            }
            until("its processes are dead", async || processes(doomed.as_str()).is_empty()).await;
            let other = claim(&home, &client, create("other")).await;
            assert_ne!(other.name, doomed);
            let seen = tokio::task::block_in_place(|| title(other.endpoint.as_ref().unwrap()));
            assert_eq!(seen.0, "rendered", "{seen:?}");
            let now = filled(&home, &client).await;
            assert_eq!((now.hits, now.drained), (2, 1), "{now:?}\n{}", home.log());
            destroy(&client, &clone).await;
            destroy(&client, &other).await;
            daemon.stop().await;
        });
    });
}

/// A member whose renderer was killed is never handed out, however short a time ago that was.
#[test]
fn a_member_with_a_killed_renderer_is_never_handed_out() {
    in_private_machine("a_member_with_a_killed_renderer_is_never_handed_out", |lab| {
        let told = std::env::var("HOSTD_TEST_CYCLES").ok();
        let rounds: u64 = told.map_or(8, |text| text.parse().expect("HOSTD_TEST_CYCLES is a number"));
        // One member: the next create claims it. With browserd it has a tab, and so a renderer.
        let browserd = Path::new(env!("CARGO_BIN_EXE_hostd")).with_file_name("browserd");
        assert!(browserd.is_file(), "{} is missing: cargo build -p browserd", browserd.display());
        let browserd = format!("linux.browserd={}", browserd.display());
        let home = home(lab, &[&browserd, "pool.size=1", "pool.refill_percent=100"]);
        block_on(async {
            let daemon = home.start().await;
            let client = daemon.client().await;
            for round in 0..rounds {
                let member = filled(&home, &client).await.members.remove(0).name;
                let is_renderer = |pid: &u32| {
                    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                    String::from_utf8_lossy(&command).contains("--type=renderer")
                };
                let renderer = processes(member.as_str()).into_iter().find(is_renderer).expect("a renderer");
                let renderer = nix::unistd::Pid::from_raw(renderer.try_into().unwrap());
                nix::sys::signal::kill(renderer, nix::sys::signal::Signal::SIGKILL).unwrap();
                // At different times of its end, the first of them at once.
                tokio::time::sleep(Duration::from_millis(round % 4)).await;
                let clone = client.create(create(format!("round-{round}"))).await.unwrap().clone;
                assert_ne!(clone.launch, Some(Launch::Warm), "round {round}: the clone has a crashed tab");
                destroy(&client, &clone).await;
            }
            let pool = pool(&client).await;
            assert_eq!((pool.hits, pool.drained), (0, rounds), "{pool:?}\n{}", home.log());
            daemon.stop().await;
        });
    });
}

#[test]
fn members_outlive_hostd_and_end_with_its_stop() {
    in_private_machine("members_outlive_hostd_and_end_with_its_stop", |lab| {
        let home = home(lab, &["pool.size=1", "pool.refill_percent=100"]);
        block_on(async {
            let daemon = home.start().await;
            let before = {
                let client = daemon.client().await;
                let member = filled(&home, &client).await.members.remove(0);
                let info = client.list(ListParams { name: Some(member.name), tenant: None }).await.unwrap();
                info.clones[0].clone_id.clone()
            };
            daemon.kill9().await;
            let daemon = home.start().await;
            let client = daemon.client().await;
            until("the member was adopted", async || home.log().contains("was adopted")).await;
            let taken = claim(&home, &client, create("after")).await;
            assert_eq!(taken.clone_id, before, "the same clone, from before the kill");
            let seen = tokio::task::block_in_place(|| title(taken.endpoint.as_ref().unwrap()));
            assert_eq!(seen.0, "rendered", "{seen:?}");
            destroy(&client, &taken).await;
            filled(&home, &client).await;
            drop(client);
            daemon.stop().await;
            for entry in fs::read_dir(home.path().join("state/records")).unwrap() {
                let text = fs::read_to_string(entry.unwrap().path()).unwrap();
                assert!(text.contains("quarantined"), "{text}");
            }
            for slot in 1..=40 {
                let left = processes(&format!("browsertask{slot:03}"));
                assert!(left.is_empty(), "slot {slot}: {left:?}");
            }
        });
    });
}

/// A text that only the task that wrote it may ever find.
fn canary(task: usize) -> String {
    format!("canary-of-task-{task}-{}", "x".repeat(12))
}

/// Write a file as the clone's user does: the sandbox's own file systems know nobody else.
fn write_inside(name: &str, folder: &Path, file: &str, content: &str) -> std::io::Result<()> {
    let opened = fs::File::open(folder)?;
    let uid = lab::uid_base() + slot_number(name);
    let path = format!("/proc/self/fd/{}/{file}", opened.as_raw_fd());
    // The file system's user is a property of the thread, which ends afterwards.
    let write = || {
        nix::unistd::setfsgid(nix::unistd::Gid::from_raw(uid));
        nix::unistd::setfsuid(nix::unistd::Uid::from_raw(uid));
        fs::write(path, content)
    };
    std::thread::scope(|scope| scope.spawn(write).join().unwrap())
}

/// The writable places of a clone, as the host sees them: its files, and what is only in memory, by way of a process.
fn places(home: &Home, name: &str) -> Vec<PathBuf> {
    // Not one of those that guard the sandbox from outside (they see this machine's own folders), and no renderer, whose
    // own sandbox shows it nothing to write to.
    let own = |root: &Path, folder: &str| {
        let here = Path::new("/").join(folder).metadata().map(|meta| meta.dev()).ok();
        let folder = root.join(folder);
        folder.metadata().is_ok_and(|meta| Some(meta.dev()) != here)
            && write_inside(name, &folder, "probe", "").is_ok()
    };
    let inside = processes(name)
        .into_iter()
        .map(|pid| PathBuf::from(format!("/proc/{pid}/root")))
        .find(|root| own(root, "dev/shm"))
        .expect("a process that sees the sandbox's folders");
    // Without browserd there is no /tmp inside: temporary files are in the home folder, which is in memory as well.
    let all = ["dev/shm", "tmp", "home/browser"].into_iter();
    let volatile: Vec<PathBuf> =
        all.filter(|folder| own(&inside, folder)).map(|folder| inside.join(folder)).collect();
    assert!(volatile.len() >= 2, "shared memory and temporary files: {volatile:?}");
    let files = home.path().join("clones").join(name);
    let mut places: Vec<PathBuf> = ["profile", "downloads", "media"].map(|folder| files.join(folder)).into();
    places.extend(volatile);
    places
}

fn found_in(places: &[PathBuf], word: &str) -> Vec<PathBuf> {
    places.iter().flat_map(|place| lab::files_with(place, word)).collect()
}

/// What a page of the same site finds: cookies, storage, caches, databases, the worker's own files.
const READ: &str = "(async () => {
    const caches_ = [];
    if (self.caches) for (const name of await caches.keys()) caches_.push(name);
    const databases = self.indexedDB.databases ? (await indexedDB.databases()).map(d => d.name) : [];
    return JSON.stringify([document.cookie, {...localStorage}, {...sessionStorage}, caches_, databases, history.length]);
})()";

fn plant(canary: &str) -> String {
    format!(
        "(async () => {{
            document.cookie = '{canary}=1; max-age=86400';
            localStorage.setItem('{canary}', '{canary}');
            sessionStorage.setItem('{canary}', '{canary}');
            await new Promise((good, bad) => {{
                const open = indexedDB.open('{canary}', 1);
                open.onupgradeneeded = () => open.result.createObjectStore('{canary}').put('{canary}', 1);
                open.onsuccess = good; open.onerror = bad;
            }});
            return document.cookie;
        }})()"
    )
}

#[test]
fn nothing_passes_from_one_task_to_the_next() {
    in_private_machine("nothing_passes_from_one_task_to_the_next", |lab| {
        let told = std::env::var("HOSTD_TEST_CYCLES").ok();
        let tasks: usize = told.map_or(6, |text| text.parse().expect("HOSTD_TEST_CYCLES is a number"));
        // So few slots that tasks reuse them.
        let home = home(lab, &["pool.size=2", "pool.refill_percent=100", "pool.last_slot=3"]);
        block_on(async {
            let daemon: Daemon = home.start().await;
            let client = daemon.client().await;
            let mut used = Vec::new();
            for task in 0..tasks {
                filled(&home, &client).await;
                let clone = claim(&home, &client, create(format!("task-{task}"))).await;
                let name = clone.name.to_string();
                tokio::task::block_in_place(|| {
                    let places = places(&home, &name);
                    for earlier in 0..task {
                        let found = found_in(&places, &canary(earlier));
                        assert!(found.is_empty(), "task {task} finds what task {earlier} left: {found:?}");
                    }
                    let mut page = Page::open(clone.endpoint.as_ref().unwrap());
                    let url = format!("http://{PUBLIC}:{PORT}/");
                    assert_eq!(page.load(&url, LIMIT).0, "rendered");
                    let fresh = page.evaluate(READ);
                    assert_eq!(
                        fresh, "[\"\",{},{},[],[],2]",
                        "task {task} has a browser without earlier data"
                    );
                    // Every place is written to, and really was.
                    let mine = canary(task);
                    for place in &places {
                        write_inside(&name, place, &mine, &mine)
                            .unwrap_or_else(|error| panic!("{place:?}: {error}"));
                    }
                    // Its address goes into the browser's cache and history.
                    assert_eq!(page.load(&format!("{url}?{mine}"), LIMIT).0, "rendered");
                    let cookie = page.evaluate(&plant(&mine));
                    assert!(cookie.as_str().unwrap().contains(&mine), "{cookie}");
                    let known = page.evaluate(READ);
                    assert_eq!(known.as_str().unwrap().matches(&mine).count(), 6, "{known}");
                    let found = found_in(&places, &mine);
                    assert!(found.len() >= places.len(), "{found:?}");
                });
                used.push(name);
                destroy(&client, &clone).await;
            }
            let slots: std::collections::BTreeSet<&String> = used.iter().collect();
            println!("{tasks} tasks in {} slots", slots.len());
            assert!(slots.len() < tasks || tasks < 4, "no slot was used twice: {used:?}");
            daemon.stop().await;
        });
    });
}

#[test]
fn a_full_pool_is_left_without_a_trace() {
    in_private_machine("a_full_pool_is_left_without_a_trace", |lab| {
        let home =
            home(lab, &["pool.size=1", "pool.flavors=[\"ready\",\"basic\"]", "pool.refill_percent=100"]);
        block_on(async {
            let daemon = home.start().await;
            let client = daemon.client().await;
            filled(&home, &client).await;
            let warm = claim(&home, &client, create("warm")).await;
            // With the ready one gone the basic one is next, unless the pool was quicker.
            let next = client.create(create("next")).await.unwrap().clone;
            assert!(matches!(next.launch, Some(Launch::Basic | Launch::Warm)), "{next:?}");
            let seen = tokio::task::block_in_place(|| title(next.endpoint.as_ref().unwrap()));
            assert_eq!(seen.0, "rendered", "{seen:?}");
            destroy(&client, &warm).await;
            destroy(&client, &next).await;
            filled(&home, &client).await;
            drop(client);
            daemon.stop().await;
            let daemon = home.start().await;
            filled(&home, &daemon.client().await).await;
            daemon.stop().await;
            let before = lab.inventory(home.path());
            let daemon = home.start().await;
            filled(&home, &daemon.client().await).await;
            daemon.stop().await;
            same(&before, &lab.inventory(home.path()));
        });
    });
}
