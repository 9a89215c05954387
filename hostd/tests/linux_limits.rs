//! What a clone may use up, on the real kernel: what is promised is on every process, and what cannot be kept is said.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod daemon;
mod lab;
mod life;

use daemon::create;
use hostd::api::{CreateParams, Limits, Severity, StatusParams};
use lab::in_private_machine;
use life::{block_on, destroy, home, made_as};
use std::fs;
use std::path::Path;

/// The limit of one process, as the kernel tells it: soft and hard.
fn limit(pid: u32, name: &str) -> Option<(String, String)> {
    let text = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?.to_owned();
    let mut words = line.split_whitespace().map(str::to_owned);
    Some((words.next()?, words.next()?))
}

#[test]
fn open_files_are_limited_with_and_without_browserd() {
    in_private_machine("open_files_are_limited_with_and_without_browserd", |lab| {
        let browserd = Path::new(env!("CARGO_BIN_EXE_hostd")).with_file_name("browserd");
        assert!(browserd.is_file(), "{} is missing: cargo build -p browserd", browserd.display());
        for setting in [format!("linux.browserd={}", browserd.display()), "linux.browserd=".to_owned()] {
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
