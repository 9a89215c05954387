//! Shared test helpers: policies, private networks, and running as an ordinary user.
#![allow(dead_code)]

use sandbox::{FileRule, HostFacts, Launch, Policy, Program, SandboxPlan};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// One of the user ids that belong to this test process.
pub(crate) fn uid(number: u32) -> u32 {
    assert!(number < kernel::user_ids::PER_TEST);
    kernel::user_ids::of_test(std::process::id()).start() + number
}

/// The private uid of tests that run as root. Each thread has its own: a uid is refused while another sandbox uses it.
pub(crate) fn private_uid() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(100);
    thread_local!(static NUMBER: u32 = NEXT.fetch_add(1, Ordering::Relaxed));
    uid(NUMBER.with(|number| *number))
}

/// Whether this process is root.
pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// A policy for system programs with every layer required.
pub(crate) fn policy() -> Policy {
    let mut policy = Policy::new("test");
    policy.files = FileRule::system_programs();
    policy.files.extend(FileRule::identity_files(&policy.identity, "tester", "/tmp"));
    policy.files.push(FileRule::temporary("/tmp", 16 << 20));
    policy.files.push(FileRule::temporary("/dev/shm", 16 << 20));
    policy.environment.insert("PATH".into(), "/usr/bin:/bin".into());
    policy.working_folder = "/tmp".into();
    policy.limits.open_files = 256;
    policy.identity.host_uid = is_root().then(private_uid);
    policy
}

/// The plan for `sh -c script` under `policy`.
pub(crate) fn shell(policy: &Policy, script: &str) -> SandboxPlan {
    program(policy, "/usr/bin/sh", &["-c", script])
}

/// The plan for a program under `policy`.
pub(crate) fn program(policy: &Policy, path: &str, arguments: &[&str]) -> SandboxPlan {
    let program =
        Program { path: path.into(), arguments: arguments.iter().map(|a| (*a).to_owned()).collect() };
    policy.plan(&HostFacts::gather(policy).expect("facts"), &program).expect("plan")
}

/// Runs a script and returns its status and output.
pub(crate) fn output(policy: &Policy, script: &str) -> (i32, String) {
    use std::io::Read;
    let (mut reader, writer) = std::io::pipe().expect("pipe");
    let mut sandbox = Launch::new(shell(policy, script))
        .stdout(sandbox::Stdio::Descriptor(writer.try_clone().expect("copy").into()))
        .stderr(sandbox::Stdio::Descriptor(writer.into()))
        .spawn()
        .expect("starts");
    let mut text = String::new();
    reader.read_to_string(&mut text).expect("read");
    let status = sandbox.wait().expect("ends");
    (status.code().expect("exit code"), text)
}

/// Runs `test` in a thread with its own network namespace, with the given addresses on the
/// loopback. Root only.
pub(crate) fn in_own_network<T: Send + 'static>(
    addresses: &[&str],
    test: impl FnOnce() -> T + Send + 'static,
) -> T {
    assert!(is_root(), "creating a network namespace needs root");
    let addresses: Vec<String> = addresses.iter().map(|a| (*a).to_owned()).collect();
    std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("own network");
        ip(&["link", "set", "lo", "up"]);
        for address in &addresses {
            ip(&["address", "add", address, "dev", "lo"]);
        }
        test()
    })
    .join()
    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn ip(arguments: &[&str]) {
    let status = Command::new("ip").args(arguments).status().expect("ip");
    assert!(status.success(), "ip {arguments:?}");
}

/// Runs the ignored test `name` of this test program as an ordinary user, in the namespaces of the
/// calling thread.
pub(crate) fn as_ordinary_user(name: &str) {
    use std::os::unix::process::CommandExt;
    assert!(is_root(), "running as another user needs root");
    let output = Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"])
        .uid(private_uid())
        .gid(private_uid())
        .env("HOME", "/nonexistent")
        .output()
        .expect("runs again");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "as uid {}: {text}\n{}",
        private_uid(),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Processes whose command line contains `text`.
pub(crate) fn processes_with(text: &str) -> Vec<i32> {
    let own = std::process::id() as i32;
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| *pid != own)
        .filter(|pid| {
            std::fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains(text))
        })
        .collect()
}

/// Waits until `condition` holds, for at most five seconds.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..500 {
        if condition() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("within five seconds: {what}");
}
