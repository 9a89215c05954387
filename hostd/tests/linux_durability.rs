//! Deadlines on the real kernel while the disk of state, audit log and clones is full or read-only, and after the state
//! folder was removed: a clone goes at its deadline, also when hostd is killed and started again meanwhile.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod daemon;
mod lab;
mod life;

use daemon::{Daemon, Home, create, until};
use hostd::api::{CloneInfo, CloneState, CreateParams, StatusParams};
use hostd::client::Client;
use lab::{Lab, in_private_machine, run};
use life::{block_on, clones, code, destroy, home, made, made_as, same, until_empty};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A small file system of the test, for everything that hostd writes.
struct Disk(PathBuf);

impl Drop for Disk {
    /// The folder around it is removed afterwards. What hostd mounted in it goes with it.
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").args(["--lazy", "--recursive"]).arg(&self.0).status();
    }
}

impl Disk {
    fn mount(folder: PathBuf) -> Disk {
        fs::create_dir(&folder).unwrap();
        run(&format!("mount -t tmpfs -o size=16m,mode=755 disk {}", folder.display()));
        Disk(folder)
    }

    fn fill(&self) {
        let mut filler = fs::File::create(self.0.join("filler")).unwrap();
        for size in [1 << 16, 1 << 12, 1] {
            while filler.write_all(&vec![1; size]).is_ok() {}
        }
    }

    fn empty(&self) {
        fs::remove_file(self.0.join("filler")).unwrap();
    }

    fn set_writable(&self, writable: bool) {
        let mode = if writable { "rw" } else { "ro" };
        run(&format!("mount -o remount,bind,{mode} {}", self.0.display()));
    }
}

/// A home with everything but the socket on one disk, which is in this folder.
fn home_on_disk(lab: &Lab, folder: &Path, more: &[&str]) -> (Home, Disk) {
    let disk = Disk::mount(folder.join("disk"));
    let at = |name: &str| disk.0.join(name).display().to_string();
    let paths = [
        format!("paths.state={}", at("state")),
        format!("paths.audit={}", at("log/audit.log")),
        format!("pool.clones_dir={}", at("clones")),
    ];
    // A path that the test gives is used instead.
    let key = |setting: &str| setting.split('=').next().map(str::to_owned);
    let paths =
        paths.iter().map(String::as_str).filter(|path| more.iter().all(|other| key(other) != key(path)));
    let settings: Vec<&str> = paths.chain(more.iter().copied()).collect();
    (home(lab, &settings), disk)
}

/// A clone with the numbers of its processes.
struct Running {
    clone: CloneInfo,
    processes: Vec<u32>,
}

impl Running {
    async fn start(client: &Client, home: &Home, disk: &Disk, id: &str, seconds: u64) -> Running {
        let clone =
            made_as(client, CreateParams { deadline_seconds: Some(seconds), ..create(id) }, home).await;
        let folder = disk.0.join("state/run").join(clone.name.as_str());
        let processes: Vec<u32> = lab::processes(&folder).into_keys().collect();
        assert!(processes.len() > 2, "a browser has processes");
        Running { clone, processes }
    }

    fn is_running(&self) -> bool {
        let alive = |pid: &u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
        };
        self.processes.iter().any(alive)
    }

    async fn until_gone(&self, home: &Home) {
        let name = &self.clone.name;
        until(&format!("{name} is gone\n{}", home.log()), async || !self.is_running()).await;
    }
}

/// A create is refused, and an alarm tells the operator why.
async fn creates_are_refused(daemon: &Daemon, expected: &[&str]) {
    let client = daemon.client().await;
    let refused = code(&client.create(create("refused")).await.unwrap_err());
    assert!(expected.contains(&refused.as_str()), "{refused}");
    until("there is an alarm", async || {
        let alarms = client.status(StatusParams::default()).await.unwrap().alarms;
        alarms.iter().any(|alarm| alarm.contains("cannot be written"))
    })
    .await;
}

/// Every line is whole.
fn audit_lines(path: &Path) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

#[test]
fn deadlines_hold_on_a_full_disk() {
    in_private_machine("deadlines_hold_on_a_full_disk", |lab| {
        let folder = tempfile::tempdir().unwrap();
        let (home, disk) = home_on_disk(lab, folder.path(), &[]);
        block_on(async {
            let daemon = home.start().await;
            let before = lab.inventory(&disk.0);
            let client = daemon.client().await;
            let asked = Running::start(&client, &home, &disk, "asked", 600).await;
            let short = Running::start(&client, &home, &disk, "short", 6).await;
            let longer = Running::start(&client, &home, &disk, "longer", 25).await;
            let kept = Running::start(&client, &home, &disk, "kept", 600).await;
            disk.fill();

            creates_are_refused(&daemon, &["audit_unavailable", "state_unavailable"]).await;
            destroy(&client, &asked.clone).await;
            assert!(!asked.is_running());
            short.until_gone(&home).await;
            assert!(longer.is_running() && kept.is_running());

            daemon.kill9().await;
            let daemon = home.start().await;
            longer.until_gone(&home).await;
            assert!(kept.is_running(), "its deadline has not passed");
            let client = daemon.client().await;
            until("its state is known", async || {
                let known = clones(&daemon).await;
                known.iter().any(|clone| clone.name == kept.clone.name && clone.state == CloneState::Ready)
            })
            .await;

            disk.empty();
            until("clones can be created again", async || client.create(create("again")).await.is_ok()).await;
            until("no alarm is left", async || {
                client.status(StatusParams::default()).await.unwrap().alarms.is_empty()
            })
            .await;
            let lines = audit_lines(&disk.0.join("log/audit.log"));
            let reaped = |line: &&serde_json::Value| line["request"]["name"] == longer.clone.name.as_str();
            assert!(lines.iter().any(|line| reaped(&line)), "its lines were written later: {lines:#?}");
            let calls = lines.iter().filter_map(|line| line["call"].as_u64());
            assert!(calls.count() > 4);
            for clone in clones(&daemon).await.iter().filter(|clone| clone.state == CloneState::Ready) {
                destroy(&client, clone).await;
            }
            until_empty(&daemon).await;
            same(&before, &lab.inventory(&disk.0));
            daemon.stop().await;
        });
    });
}

#[test]
fn deadlines_hold_on_a_read_only_disk() {
    in_private_machine("deadlines_hold_on_a_read_only_disk", |lab| {
        // An open log would keep the test from making the disk read-only.
        let elsewhere = tempfile::tempdir().unwrap();
        let audit = format!("paths.audit={}", elsewhere.path().join("audit.log").display());
        let (home, disk) = home_on_disk(lab, elsewhere.path(), &[&audit]);
        block_on(async {
            let daemon = home.start().await;
            let client = daemon.client().await;
            let asked = Running::start(&client, &home, &disk, "asked", 600).await;
            let short = Running::start(&client, &home, &disk, "short", 6).await;
            let longer = Running::start(&client, &home, &disk, "longer", 25).await;
            disk.set_writable(false);
            creates_are_refused(&daemon, &["state_unavailable"]).await;
            destroy(&client, &asked.clone).await;
            assert!(!asked.is_running());
            short.until_gone(&home).await;
            daemon.kill9().await;
            let daemon = home.start().await;
            assert!(longer.is_running());
            longer.until_gone(&home).await;
            disk.set_writable(true);
            let client = daemon.client().await;
            // The first process could not record this destroy, so its record came back without a clone.
            let known = clones(&daemon).await;
            let left = known.iter().find(|clone| clone.name == asked.clone.name).expect("its record");
            assert_eq!(left.state, CloneState::Broken);
            destroy(&client, left).await;
            until_empty(&daemon).await;
            let again = made(&client, "again", &home).await;
            destroy(&client, &again).await;
            until_empty(&daemon).await;
            daemon.stop().await;
        });
    });
}

/// The socket's disk is read-only at the start: hostd cannot be called, and clones still go.
#[test]
fn deadlines_hold_without_a_socket() {
    in_private_machine("deadlines_hold_without_a_socket", |lab| {
        let elsewhere = tempfile::tempdir().unwrap();
        let folder = Disk::mount(elsewhere.path().join("run"));
        let socket = folder.0.join("sock");
        let setting = format!("paths.socket={}", socket.display());
        let (home, disk) = home_on_disk(lab, elsewhere.path(), &[&setting]);
        block_on(async {
            let mut daemon = home.command().spawn().unwrap();
            until("it answers", async || Client::connect(&socket).await.is_ok()).await;
            let client = Client::connect(&socket).await.unwrap().with_timeout(daemon::PATIENCE);
            let short = Running::start(&client, &home, &disk, "short", 10).await;
            daemon.kill().unwrap();
            daemon.wait().unwrap();
            folder.set_writable(false);
            let mut daemon = home.command().spawn().unwrap();
            short.until_gone(&home).await;
            assert!(Client::connect(&socket).await.is_err(), "nobody listens yet");
            folder.set_writable(true);
            until("it answers again", async || Client::connect(&socket).await.is_ok()).await;
            daemon.kill().unwrap();
            daemon.wait().unwrap();
        });
    });
}

#[test]
fn deadlines_hold_without_a_state_folder() {
    in_private_machine("deadlines_hold_without_a_state_folder", |lab| {
        let folder = tempfile::tempdir().unwrap();
        let (home, disk) = home_on_disk(lab, folder.path(), &[]);
        block_on(async {
            let daemon = home.start().await;
            let client = daemon.client().await;
            let short = Running::start(&client, &home, &disk, "short", 6).await;
            let kept = Running::start(&client, &home, &disk, "kept", 600).await;
            // Everything that can be removed: what is mounted stays.
            remove_all(&disk.0.join("state"));
            assert!(!disk.0.join("state/records").exists());
            short.until_gone(&home).await;
            until("the records are there again", async || {
                let records = fs::read_dir(disk.0.join("state/records"));
                records.is_ok_and(|records| records.count() > 0)
            })
            .await;
            assert!(kept.is_running(), "its deadline has not passed");
            destroy(&client, &kept.clone).await;
            assert!(!kept.is_running());
            until_empty(&daemon).await;
            let again = made(&client, "again", &home).await;
            destroy(&client, &again).await;
            daemon.stop().await;
        });
    });
}

/// hostd does not run, its records and the clones' own files are gone: each supervisor keeps its clone's deadline.
#[test]
fn deadlines_hold_without_hostd_and_without_a_state_folder() {
    in_private_machine("deadlines_hold_without_hostd_and_without_a_state_folder", |lab| {
        let folder = tempfile::tempdir().unwrap();
        let (home, disk) = home_on_disk(lab, folder.path(), &["lifecycle.orphan_grace_seconds=0"]);
        block_on(async {
            let daemon = home.start().await;
            let before = lab.inventory(&disk.0);
            let client = daemon.client().await;
            let renewed = Running::start(&client, &home, &disk, "renewed", 8).await;
            let again = CreateParams { deadline_seconds: Some(600), ..create("renewed") };
            assert!(client.create(again).await.unwrap().renewed);
            let short = Running::start(&client, &home, &disk, "short", 8).await;
            let kept = Running::start(&client, &home, &disk, "kept", 600).await;
            daemon.kill9().await;
            remove_all(&disk.0.join("state"));
            assert!(!disk.0.join("state/records").exists());
            assert!(short.is_running());
            short.until_gone(&home).await;
            assert!(renewed.is_running() && kept.is_running(), "their deadlines have not passed");

            // What is left of all three is found and removed without records.
            let daemon = home.start().await;
            let client = daemon.client().await;
            renewed.until_gone(&home).await;
            kept.until_gone(&home).await;
            until_empty(&daemon).await;
            let again = made(&client, "again", &home).await;
            destroy(&client, &again).await;
            until_empty(&daemon).await;
            same(&before, &lab.inventory(&disk.0));
            daemon.stop().await;
        });
    });
}

fn remove_all(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            true => {
                remove_all(&path);
                let _ = fs::remove_dir(&path);
            }
            false => drop(fs::remove_file(&path)),
        }
    }
}
