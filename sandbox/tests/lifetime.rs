//! However and whenever the launcher ends, no process of the sandbox survives.
#![cfg(target_os = "linux")]

mod common;

use common::{eventually, policy, shell, uid};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sandbox::{Launch, Policy};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Each test has its own uid, so that its processes can be identified.
fn policy_as(uid: u32) -> Policy {
    let mut policy = policy();
    policy.identity.host_uid = Some(uid);
    policy
}

/// Processes of the host that run as `uid`, without zombies.
fn processes_of(uid: u32) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").expect("/proc");
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
            status.is_ok_and(|text| {
                !text.contains("\nState:\tZ")
                    && text.lines().any(|line| {
                        line.strip_prefix("Uid:").and_then(|l| l.split_whitespace().next())
                            == Some(&uid.to_string())
                    })
            })
        })
        .collect()
}

fn assert_no_process_left(uid: u32) {
    eventually("no process of the sandbox is left", || processes_of(uid).is_empty());
}

/// A separate launcher process, which starts a sandbox as `uid` and waits.
fn launcher(uid: u32) -> Child {
    Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", "a_launcher", "--ignored", "--nocapture", "--test-threads=1"])
        .env("SANDBOX_TEST_UID", uid.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("starts")
}

#[test]
#[ignore = "run as a separate process by other tests"]
fn a_launcher() {
    let uid = std::env::var("SANDBOX_TEST_UID").expect("set by the test");
    let policy = policy_as(uid.parse().expect("a number"));
    println!("\nstarting");
    let sandbox =
        Launch::new(shell(&policy, "sleep 1000 & setsid sleep 1000 & sleep 1000")).spawn().expect("starts");
    println!("\nrunning");
    std::thread::sleep(Duration::from_secs(60));
    drop(sandbox);
}

fn wait_for_line(child: &mut Child, wanted: &str) {
    let output = child.stdout.take().expect("piped");
    let found = BufReader::new(output).lines().map_while(Result::ok).any(|line| line == wanted);
    assert!(found, "the launcher did not print {wanted:?}");
}

fn kill_and_reap(mut child: Child) {
    child.kill().expect("kill");
    child.wait().expect("reap");
}

#[test]
fn a_killed_launcher_leaves_no_process() {
    let uid = uid(1);
    let mut child = launcher(uid);
    wait_for_line(&mut child, "running");
    // Stage 1, bubblewrap twice, the shell, three sleeps.
    eventually("everything runs", || processes_of(uid).len() >= 7);
    kill_and_reap(child);
    assert_no_process_left(uid);
}

#[test]
fn a_launcher_killed_during_the_start_leaves_no_process() {
    let uid = uid(2);
    for step in 0..40 {
        let mut child = launcher(uid);
        wait_for_line(&mut child, "starting");
        let until = Instant::now() + Duration::from_micros(700 * step);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        kill_and_reap(child);
        assert_no_process_left(uid);
    }
}

#[test]
fn a_sandbox_outlives_the_thread_that_started_it() {
    let uid = uid(3);
    let plan = shell(&policy_as(uid), "sleep 1000");
    let mut sandbox =
        std::thread::spawn(|| Launch::new(plan).spawn()).join().expect("the thread ends").expect("starts");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(sandbox.try_wait().expect("asks"), None, "still running");
    assert!(!processes_of(uid).is_empty());
    sandbox.kill().expect("ends");
    assert_no_process_left(uid);
}

#[test]
fn a_dropped_handle_leaves_no_process() {
    let uid = uid(4);
    let sandbox = Launch::new(shell(&policy_as(uid), "sleep 1000 & sleep 1000")).spawn().expect("starts");
    drop(sandbox);
    assert_eq!(processes_of(uid), Vec::<i32>::new());
}

#[test]
fn daemons_of_the_program_end_with_it() {
    let uid = uid(5);
    let script = "setsid sleep 1000 & setsid sh -c 'sleep 1000 & sleep 1000' & exit 7";
    let mut sandbox = Launch::new(shell(&policy_as(uid), script)).spawn().expect("starts");
    assert_eq!(sandbox.wait().expect("ends").code(), Some(7));
    assert_no_process_left(uid);
}

#[test]
fn a_killed_guard_leaves_no_process() {
    let uid = uid(6);
    let mut sandbox = Launch::new(shell(&policy_as(uid), "sleep 1000")).spawn().expect("starts");
    let guard = i32::try_from(sandbox.guard_pid()).expect("a pid");
    kill(Pid::from_raw(guard), Signal::SIGKILL).expect("kill");
    // wait only reaps the guard; the kernel must kill the rest.
    sandbox.wait().expect("ended");
    assert_no_process_left(uid);
}

#[test]
fn stop_sends_sigterm_and_kills_after_the_grace_period() {
    let uid = uid(7);
    let polite = "trap 'exit 5' TERM; while :; do sleep 0.05; done";
    let mut sandbox = Launch::new(shell(&policy_as(uid), polite)).spawn().expect("starts");
    // The shell needs time to set its trap.
    std::thread::sleep(Duration::from_millis(200));
    let status = sandbox.stop(Duration::from_secs(5)).expect("stops");
    assert_eq!(status.code(), Some(5));

    let ignoring = "trap '' TERM; while :; do sleep 0.05; done";
    let mut sandbox = Launch::new(shell(&policy_as(uid), ignoring)).spawn().expect("starts");
    std::thread::sleep(Duration::from_millis(200));
    let begin = Instant::now();
    let status = sandbox.stop(Duration::from_millis(300)).expect("stops");
    assert_eq!(status.code(), Some(137), "killed");
    assert!(begin.elapsed() >= Duration::from_millis(300));
    assert_no_process_left(uid);
}
