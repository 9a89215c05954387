//! Resource limits of clones on the real kernel: promised limits are set for every process, and limits that this host cannot
//! enforce are reported.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod daemon;
mod lab;
mod life;

use daemon::create;
use hostd::api::{CreateParams, LimitRange, Limits, Severity, StatusParams};
use lab::{LIMIT, Page, in_private_machine};
use life::{block_on, destroy, home, made_as};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The limit of one process, as the kernel tells it: soft and hard.
fn limit(pid: u32, name: &str) -> Option<(String, String)> {
    let text = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?.to_owned();
    let mut words = line.split_whitespace().map(str::to_owned);
    Some((words.next()?, words.next()?))
}

/// The setting of a daemon with browserd, and of one without.
fn with_and_without_browserd() -> [String; 2] {
    let browserd = Path::new(env!("CARGO_BIN_EXE_hostd")).with_file_name("browserd");
    assert!(browserd.is_file(), "{} is missing: cargo build -p browserd", browserd.display());
    [format!("linux.browserd={}", browserd.display()), "linux.browserd=".to_owned()]
}

#[test]
fn open_files_are_limited_with_and_without_browserd() {
    in_private_machine("open_files_are_limited_with_and_without_browserd", |lab| {
        for setting in with_and_without_browserd() {
            let home = home(lab, &[&setting]);
            block_on(async {
                let daemon = home.start().await;
                let client = daemon.client().await;
                let limits = Limits { open_files: Some(700), ..Limits::default() };
                let clone =
                    made_as(&client, CreateParams { limits: Some(limits), ..create("files") }, &home).await;
                let run = home.path().join("state/run").join(clone.name.as_str());
                let browsers: Vec<u32> = lab::processes(&run)
                    .into_iter()
                    .filter(|(_, command)| command.contains("chromium"))
                    .map(|(pid, _)| pid)
                    .collect();
                let seen: Vec<_> = browsers.iter().filter_map(|pid| limit(*pid, "Max open files")).collect();
                assert!(seen.len() > 3, "{setting}: {browsers:?}");
                for (soft, hard) in seen {
                    assert_eq!((soft.as_str(), hard.as_str()), ("700", "700"), "{setting}");
                }
                destroy(&client, &clone).await;
                daemon.stop().await;
            });
        }
    });
}

/// The smallest limits that a request may ask for are enough for a browser with a blank page.
#[test]
fn a_clone_starts_with_the_smallest_limits() {
    in_private_machine("a_clone_starts_with_the_smallest_limits", |lab| {
        for setting in with_and_without_browserd() {
            let home = home(lab, &[&setting]);
            block_on(async {
                let daemon = home.start().await;
                let client = daemon.client().await;
                let limits = Limits {
                    memory_bytes: Some(LimitRange::MEMORY_BYTES.least),
                    processes: Some(LimitRange::PROCESSES.least),
                    open_files: Some(LimitRange::OPEN_FILES.least),
                    cpu_percent: Some(LimitRange::CPU_PERCENT.least),
                    disk_bytes: Some(LimitRange::DISK_BYTES.least),
                    ..Limits::default()
                };
                let clone =
                    made_as(&client, CreateParams { limits: Some(limits), ..create("small") }, &home).await;
                assert_eq!(clone.limits, Some(limits), "{setting}");
                destroy(&client, &clone).await;
                daemon.stop().await;
            });
        }
    });
}

/// The process that the sandbox executed: browserd, or the browser itself.
fn program(run: &Path) -> u32 {
    let processes = lab::processes(run);
    let browser = |command: &String| command.contains("chromium") && !command.contains("--type=");
    let browserd = processes.iter().find(|(_, command)| command.starts_with("/run/browserd"));
    let program = browserd.or_else(|| processes.iter().find(|(_, command)| browser(command)));
    *program.unwrap_or_else(|| panic!("{processes:?}")).0
}

/// A setting as the program sees it in its own user namespace.
fn setting(pid: u32, file: &str) -> u32 {
    let pid = pid.to_string();
    let path = format!("/proc/sys/user/{file}");
    let done = Command::new("nsenter")
        .args(["--user", "--preserve-credentials", "--target", &pid, "cat", &path])
        .output()
        .unwrap();
    String::from_utf8_lossy(&done.stdout).trim().parse().unwrap_or_else(|_| panic!("{file}: {done:?}"))
}

#[test]
fn kernel_objects_of_a_clone_are_bounded() {
    in_private_machine("kernel_objects_of_a_clone_are_bounded", |lab| {
        let browserd = Path::new(env!("CARGO_BIN_EXE_hostd")).with_file_name("browserd");
        assert!(browserd.is_file(), "{} is missing: cargo build -p browserd", browserd.display());
        for setting_of_browserd in
            [format!("linux.browserd={}", browserd.display()), "linux.browserd=".to_owned()]
        {
            let home = home(lab, &[&setting_of_browserd]);
            block_on(async {
                let daemon = home.start().await;
                let client = daemon.client().await;
                let limits = Limits { disk_bytes: Some(64 << 20), ..Limits::default() };
                let clone =
                    made_as(&client, CreateParams { limits: Some(limits), ..create("bounded") }, &home).await;
                let run = home.path().join("state/run").join(clone.name.as_str());
                let program = program(&run);
                for (kind, most) in [
                    ("user", 32),
                    ("pid", 512),
                    ("net", 16),
                    ("mnt", 0),
                    ("ipc", 0),
                    ("uts", 0),
                    ("cgroup", 0),
                    ("time", 0),
                ] {
                    assert_eq!(
                        setting(program, &format!("max_{kind}_namespaces")),
                        most,
                        "{setting_of_browserd}"
                    );
                }
                let root = format!("/proc/{program}/root");
                assert!(!Path::new(&format!("{root}/dev/pts")).exists(), "no terminals");
                let files = nix::sys::statvfs::statvfs(format!("{root}/dev/shm").as_str()).unwrap().files();
                assert!(files < 100_000, "{files} files in /dev/shm");
                assert_eq!(limit(program, "Max msgqueue size").unwrap().1, "0");
                assert_eq!(limit(program, "Max pending signals").unwrap().1, "1024");
                // The files of the clone: one for each 16 KiB.
                let disk = home.path().join("clones").join(clone.name.as_str()).join("downloads");
                assert_eq!(nix::sys::statvfs::statvfs(&disk).unwrap().files(), (64 << 20) / (16 << 10));
                destroy(&client, &clone).await;
                daemon.stop().await;
            });
        }
    });
}

#[test]
fn a_browser_with_many_pages_stays_within_its_bounds() {
    in_private_machine("a_browser_with_many_pages_stays_within_its_bounds", |lab| {
        const PAGES: usize = 25;
        let home = home(lab, &[]);
        block_on(async {
            let daemon = home.start().await;
            let client = daemon.client().await;
            let clone = made_as(&client, create("pages"), &home).await;
            let run = home.path().join("state/run").join(clone.name.as_str());
            tokio::task::block_in_place(|| {
                for number in 0..PAGES {
                    // The page stays open when its connection ends.
                    let mut page = Page::open(clone.endpoint.as_ref().unwrap());
                    let (title, problem) =
                        page.load(&format!("data:text/html,<title>page {number}</title>"), LIMIT);
                    assert_eq!((title, problem), (format!("page {number}"), String::new()));
                }
            });
            let renderers =
                lab::processes(&run).values().filter(|command| command.contains("--type=renderer")).count();
            assert!(renderers >= PAGES, "{renderers} renderers");
            destroy(&client, &clone).await;
            daemon.stop().await;
        });
    });
}

#[test]
fn doctor_sees_user_ids_that_others_have() {
    use std::os::unix::process::CommandExt;
    in_private_machine("doctor_sees_user_ids_that_others_have", |lab| {
        let home = home(lab, &[]);
        block_on(async {
            let daemon = home.start().await;
            let client = daemon.client().await;
            let finding = async || {
                let status = client.status(StatusParams { checks: true, metrics: false }).await.unwrap();
                status.findings.unwrap().into_iter().find(|one| one.check == "user-ids").expect("a finding")
            };
            // The processes of a clone are its own.
            let clone = made_as(&client, create("own"), &home).await;
            let seen = finding().await;
            assert_eq!(seen.severity, Severity::Ok, "{seen:?}");
            destroy(&client, &clone).await;
            let uid = lab::uid_base() + 7;
            let mut other = Command::new("sleep").arg("1000").uid(uid).gid(uid).spawn().unwrap();
            let seen = finding().await;
            assert_eq!(seen.severity, Severity::Error, "{seen:?}");
            assert!(seen.message.contains(&format!("process {} has user id {uid}", other.id())), "{seen:?}");
            other.kill().unwrap();
            other.wait().unwrap();
            assert_eq!(finding().await.severity, Severity::Ok);
            daemon.stop().await;
        });
    });
}

#[test]
fn a_slot_whose_user_id_has_an_account_is_refused() {
    in_private_machine("a_slot_whose_user_id_has_an_account_is_refused", |lab| {
        // The private machine has mounts of its own: the real database is not changed.
        let passwd = home(lab, &[]);
        let copy = passwd.path().join("passwd");
        let taken = lab::uid_base() + 3;
        let lines = fs::read_to_string("/etc/passwd").unwrap();
        fs::write(&copy, format!("{lines}taken:x:{taken}:{taken}::/:/usr/sbin/nologin\n")).unwrap();
        lab::run(&format!("mount --bind {} /etc/passwd", copy.display()));
        block_on(async {
            let daemon = passwd.start().await;
            let client = daemon.client().await;
            let name = |name: &str| Some(name.parse().unwrap());
            let refused = client
                .create(CreateParams { name: name("browsertask003"), ..create("taken") })
                .await
                .expect_err("the id has an account");
            assert_eq!(life::code(&refused), "host_not_ready", "{refused:?}");
            assert!(refused.to_string().contains("taken:x:"), "{refused}");
            let status = client.status(StatusParams { checks: true, metrics: false }).await.unwrap();
            let seen = status.findings.unwrap().into_iter().find(|one| one.check == "user-ids").unwrap();
            assert_eq!(seen.severity, Severity::Error, "{seen:?}");
            // The other slots work.
            let clone =
                made_as(&client, CreateParams { name: name("browsertask004"), ..create("free") }, &passwd)
                    .await;
            destroy(&client, &clone).await;
            daemon.stop().await;
        });
        lab::run("umount /etc/passwd");
    });
}

#[test]
fn what_is_not_kept_is_said() {
    in_private_machine("what_is_not_kept_is_said", |lab| {
        let home = home(lab, &["clone_limits.write_bytes_per_second=1000000"]);
        block_on(async {
            let daemon = home.start().await;
            let client = daemon.client().await;
            let status = client.status(StatusParams { checks: true, metrics: false }).await.unwrap();
            let keeper = &status.host["limits"];
            assert_eq!(status.host["rates"], "disk read and write rates are not limited");
            let findings = status.findings.unwrap();
            let rates = findings.iter().find(|one| one.check == "rates").expect("a finding");
            assert_eq!(rates.severity, Severity::Warning);
            assert!(rates.fix.contains("write_bytes_per_second"), "{rates:?}");

            let clone = made_as(&client, create("rates"), &home).await;
            let mut expected = vec!["write_bytes_per_second"];
            if !keeper.starts_with("cgroup") {
                expected.splice(0..0, ["memory_bytes", "cpu_percent"]);
            }
            assert_eq!(clone.limits_not_kept, expected);
            destroy(&client, &clone).await;
            daemon.stop().await;
        });
    });
}
