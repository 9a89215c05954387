//! Limits on a real cgroup v2 with a real systemd: a memory hog and a fork bomb are stopped without affecting the host.
//!
//! Containers and namespaces lack these, so the tests run in a virtual machine: `scripts/test --vm`.

mod common;

use common::{policy, program, shell};
use sandbox::{Launch, Layer, LimitEnforcer, Policy, Sandbox, Stdio};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// An emulated machine is slow.
const TIMEOUT: Duration = Duration::from_secs(300);
const MEMORY: u64 = 96 << 20;
const PROCESSES: u32 = 40;
/// The ordinary user of the machine that the tests run in.
const USER: &str = "tester";

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < TIMEOUT, "never: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn run(program: &str, arguments: &[&str]) -> String {
    let done = Command::new(program).args(arguments).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    let text = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{program} {arguments:?}: {text}");
    text
}

fn limited() -> Policy {
    let mut policy = policy();
    policy.limits.memory_bytes = Some(MEMORY);
    policy.limits.processes = Some(PROCESSES);
    policy.limits.cpu_percent = Some(80);
    policy
}

/// A sandbox with limits, and the output lines of its program.
struct Limited {
    sandbox: Sandbox,
    lines: std::io::Lines<BufReader<std::io::PipeReader>>,
    /// Its cgroup, from `/proc`.
    cgroup: PathBuf,
}

impl Limited {
    fn start(parent: Option<&Path>, script: &str) -> Limited {
        Limited::start_policy(parent, &shell(&limited(), script))
    }

    fn start_policy(parent: Option<&Path>, plan: &sandbox::SandboxPlan) -> Limited {
        let (reader, writer) = std::io::pipe().expect("pipe");
        let mut launch =
            Launch::new(plan.clone()).stdout(Stdio::Descriptor(writer.into())).ready_timeout(TIMEOUT);
        if let Some(parent) = parent {
            launch = launch.cgroup_parent(parent);
        }
        let sandbox = launch.spawn().unwrap_or_else(|error| panic!("{error}"));
        let text = fs::read_to_string(format!("/proc/{}/cgroup", sandbox.program_pid())).expect("its cgroup");
        let inside = text.lines().find_map(|line| line.strip_prefix("0::/")).expect("cgroup v2");
        let cgroup = Path::new("/sys/fs/cgroup").join(inside);
        Limited { sandbox, lines: BufReader::new(reader).lines(), cgroup }
    }

    fn read(&self, file: &str) -> String {
        let path = self.cgroup.join(file);
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())).trim().to_owned()
    }

    /// A number from a file with one name and number per line.
    fn count(&self, file: &str, name: &str) -> u64 {
        let text = self.read(file);
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} in {text}")).parse().expect("a number")
    }

    /// Ends it and checks that its cgroup is removed.
    fn end(mut self) {
        self.sandbox.kill().expect("killed");
        let cgroup = self.cgroup.clone();
        drop(self);
        until("the cgroup is gone", || !cgroup.exists());
    }
}

/// Checks the limits, whatever enforces them.
fn assert_limits_enforced(parent: Option<&Path>, expected: impl Fn(&LimitEnforcer) -> bool) {
    // The handle reports what enforces them, and the kernel has them.
    let quiet = Limited::start(parent, "echo up; exec sleep 1000");
    assert!(expected(quiet.sandbox.limits()), "{:?}", quiet.sandbox.limits());
    assert!(quiet.sandbox.has(Layer::Limits));
    assert_eq!(quiet.read("memory.max"), MEMORY.to_string());
    assert_eq!(quiet.read("pids.max"), PROCESSES.to_string());
    assert_eq!(quiet.read("cpu.max"), "80000 100000");
    println!("enforced by {:?} in {}", quiet.sandbox.limits(), quiet.cgroup.display());
    quiet.end();

    // The kernel kills a memory hog; the rest of the sandbox continues.
    let mut hog = Limited::start(
        parent,
        "head -c 400m /dev/zero | tail -c 400m >/dev/null; echo survived; exec sleep 1000",
    );
    let said = hog.lines.next().expect("the shell continues after the kill").expect("text");
    assert_eq!(said, "survived");
    assert!(hog.count("memory.events", "oom_kill") >= 1, "{}", hog.read("memory.events"));
    println!("memory hog: {}", hog.read("memory.events").replace('\n', ", "));
    hog.end();

    // A fork bomb fills its own cgroup and nothing else.
    let bomb = Limited::start(parent, "bomb() { bomb | bomb & wait; }; bomb; exec sleep 1000");
    until("the bomb is at its limit", || bomb.count("pids.events", "max") > 0);
    let current: u32 = bomb.read("pids.current").parse().expect("a number");
    assert!(current <= PROCESSES, "{current} processes");
    println!("fork bomb: {current} of {PROCESSES} processes, {}", bomb.read("pids.events"));
    for _ in 0..5 {
        assert!(Command::new("true").status().expect("the host starts processes").success());
    }
    bomb.end();
}

/// The battery's own hog and bomb, under the same limits.
fn the_battery_is_stopped(parent: Option<&Path>) {
    let options = sandbox::battery::Options {
        addresses: Vec::new(),
        cgroup_parent: parent.map(Path::to_owned),
        timeout: TIMEOUT,
        ..Default::default()
    };
    let report = sandbox::battery::run(&limited(), &options).expect("the battery runs");
    for name in ["many-processes", "much-memory"] {
        let finding = report.findings.iter().find(|finding| finding.name == name).expect("the probe ran");
        assert!(matches!(finding.outcome, sandbox::battery::Outcome::Stopped(_)), "{finding:?}");
    }
    let open: Vec<_> = report.open().collect();
    assert!(open.is_empty(), "{open:?}");
}

fn is_scope(enforcer: &LimitEnforcer) -> bool {
    matches!(enforcer, LimitEnforcer::Scope(name) if name.ends_with(".scope"))
}

fn no_scope_is_left(manager: &[&str]) {
    let listed =
        || run("systemctl", &[manager, &["list-units", "--all", "--no-legend", "sandbox-*"]].concat());
    until("systemd forgot the scopes", || listed().trim().is_empty());
}

#[test]
#[ignore = "needs systemd and cgroup v2: scripts/test --vm"]
fn root_with_a_delegated_cgroup() {
    // A unit that only provides the folder: its own process is in a separate subgroup.
    let unit = "vm-holder.service";
    let properties = ["Delegate=yes", "DelegateSubgroup=holder"].map(|p| format!("--property={p}"));
    let mut arguments = vec!["--quiet", "--unit", unit];
    arguments.extend(properties.iter().map(String::as_str));
    arguments.extend(["/usr/bin/sleep", "infinity"]);
    run("systemd-run", &arguments);
    let inside = run("systemctl", &["show", "--property=ControlGroup", "--value", unit]);
    assert!(inside.contains(unit), "{inside}");
    let parent = Path::new("/sys/fs/cgroup").join(inside.trim().trim_start_matches('/'));
    assert_limits_enforced(
        Some(&parent),
        |enforcer| matches!(enforcer, LimitEnforcer::Cgroup(at) if at.starts_with(&parent)),
    );
    the_battery_is_stopped(Some(&parent));
    run("systemctl", &["stop", unit]);
    until("the folder goes with its unit", || !parent.exists());
}

#[test]
#[ignore = "needs systemd and cgroup v2: scripts/test --vm"]
fn root_with_a_scope() {
    assert_limits_enforced(None, is_scope);
    the_battery_is_stopped(None);
    no_scope_is_left(&[]);
}

#[test]
#[ignore = "needs systemd and cgroup v2: scripts/test --vm"]
fn an_ordinary_user_with_a_scope() {
    if nix::unistd::geteuid().is_root() {
        run("loginctl", &["enable-linger", USER]);
        let uid = run("id", &["-u", USER]);
        let bus = PathBuf::from(format!("/run/user/{}/bus", uid.trim()));
        until("the user's systemd is there", || bus.exists());
        let own = std::env::current_exe().expect("own path");
        let again = format!(
            "XDG_RUNTIME_DIR=/run/user/{} {} --exact an_ordinary_user_with_a_scope --ignored --nocapture",
            uid.trim(),
            own.display()
        );
        let said = run("runuser", &["-l", USER, "-c", &again]);
        assert!(said.contains("1 passed"), "{said}");
        println!("{said}");
        return;
    }
    assert_limits_enforced(None, is_scope);
    the_battery_is_stopped(None);
    no_scope_is_left(&["--user"]);
}

#[test]
#[ignore = "needs systemd and cgroup v2: scripts/test --vm"]
fn a_launcher_that_is_killed_leaves_no_scope() {
    const CHILD: &str = "SANDBOX_TEST_LAUNCHER";
    if std::env::var_os(CHILD).is_some() {
        let limited = Limited::start(None, "exec sleep 1000");
        println!("cgroup {}", limited.cgroup.display());
        loop {
            std::thread::park();
        }
    }
    let mut child = Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", "a_launcher_that_is_killed_leaves_no_scope", "--ignored", "--nocapture"])
        .env(CHILD, "1")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("a launcher");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let cgroup = lines
        .find_map(|line| line.expect("text").split_once("cgroup ").map(|(_, path)| PathBuf::from(path)))
        .expect("it starts its sandbox");
    assert!(cgroup.is_dir(), "{}", cgroup.display());
    child.kill().expect("killed");
    child.wait().expect("ended");
    until("the scope is gone with the launcher", || !cgroup.exists());
    no_scope_is_left(&[]);
}

#[test]
#[ignore = "needs systemd and cgroup v2: scripts/test --vm"]
fn processor_time_is_bounded() {
    // Two busy loops for a tenth of one processor: the kernel throttles them.
    let mut policy = limited();
    policy.limits.cpu_percent = Some(10);
    let plan = program(&policy, "/usr/bin/sh", &["-c", "while :; do :; done & while :; do :; done"]);
    let mut sandbox = Launch::new(plan).ready_timeout(TIMEOUT).spawn().expect("starts");
    let text = fs::read_to_string(format!("/proc/{}/cgroup", sandbox.program_pid())).expect("its cgroup");
    let inside = text.lines().find_map(|line| line.strip_prefix("0::/")).expect("cgroup v2").to_owned();
    let stat = Path::new("/sys/fs/cgroup").join(inside).join("cpu.stat");
    until("the kernel throttles it", || {
        let text = fs::read_to_string(&stat).unwrap_or_default();
        let throttled = text.lines().find_map(|line| line.strip_prefix("nr_throttled "));
        throttled.and_then(|count| count.parse::<u64>().ok()).is_some_and(|count| count > 10)
    });
    sandbox.kill().expect("killed");
}

/// Fills the buffers of many connections on the sandbox's own loopback, then reports and waits.
const TCP_BUFFERS: &str = r#"
BEGIN { @INC = grep { m{^/usr/(lib|share)/} } @INC }
use strict; use Socket; use IO::Handle; use Fcntl;
socket my $server, PF_INET, SOCK_STREAM, 0 or die; bind $server, pack_sockaddr_in(7777, INADDR_LOOPBACK) or die;
listen $server, 1000 or die;
$| = 1; my @held; my $block = 'x' x 65536;
for (1 .. 200) {
    socket my $client, PF_INET, SOCK_STREAM, 0 or last;
    connect $client, pack_sockaddr_in(7777, INADDR_LOOPBACK) or last;
    fcntl $client, F_SETFL, O_NONBLOCK;
    1 while defined syswrite $client, $block;
    push @held, $client;
}
print scalar(@held), "\n"; sleep 1000;
"#;

/// Looks for names that do not exist. The kernel remembers each of them.
const NEGATIVE_DENTRIES: &str =
    r#"$| = 1; -e "/tmp/no-such-file-$_" for 1 .. 400_000; print "done\n"; sleep 1000;"#;

/// Memory that the kernel uses for a program counts towards the program's limit.
#[test]
#[ignore = "needs systemd and cgroup v2: scripts/test --vm"]
fn kernel_memory_counts_towards_the_limit() {
    // Files in memory: the folder is larger than the limit of memory.
    let mut large = limited();
    large.files.push(sandbox::FileRule::temporary("/large", 1 << 30));
    let half = MEMORY / 2;
    let script = format!("head -c {half} /dev/zero >/large/file; echo written; exec sleep 1000");
    let mut files = Limited::start_policy(None, &shell(&large, &script));
    assert_eq!(files.lines.next().expect("half of the limit fits").expect("text"), "written");
    let counted = files.count("memory.stat", "shmem");
    assert!(counted >= half, "{counted} of {half} bytes of files are counted");
    files.end();

    // Ending the writer does not free a file, so the kernel may end the shell too.
    let script = "head -c 400m /dev/zero >/large/file && echo whole || echo cut; exec sleep 1000";
    let mut files = Limited::start_policy(None, &shell(&large, script));
    let said = files.lines.next().map(|line| line.expect("text"));
    assert_ne!(said.as_deref(), Some("whole"), "a file above the limit was written");
    files.end();

    for (what, script, name) in
        [("TCP buffers", TCP_BUFFERS, "sock"), ("negative dentries", NEGATIVE_DENTRIES, "slab_reclaimable")]
    {
        let mut policy = limited();
        policy.limits.open_files = 1024;
        let plan = program(&policy, "/usr/bin/perl", &["-e", script]);
        let mut running = Limited::start_policy(None, &plan);
        // The kernel may end it at its limit, and its cgroup with it. Otherwise the memory is counted and bounded.
        if let Some(said) = running.lines.next() {
            let said = said.expect("text");
            let used: u64 = running.read("memory.peak").parse().expect("a number");
            let counted = running.count("memory.stat", name);
            println!("{what}: {said}, at most {used} bytes, {name} {counted}");
            assert!(used <= MEMORY + (8 << 20), "{what}: {used} bytes");
            assert!(counted > 0, "{what} are counted");
        }
        running.end();
    }
}

/// System V objects and POSIX queues belong to no process, and the program cannot make any.
#[test]
#[ignore = "needs systemd and cgroup v2: scripts/test --vm"]
fn there_are_no_system_v_objects_inside() {
    let script = "for kind in -M4096 -S1 -Q; do ipcmk $kind && echo made $kind; done; ipcs; echo end";
    let (_, text) = common::output(&limited(), script);
    assert!(text.contains("end") && !text.contains("made"), "{text}");
}

/// The bounds of kernel objects are the same with a cgroup. Namespaces that end are counted until the kernel has released
/// them, so making and ending them in a loop does not use more memory either.
#[test]
#[ignore = "needs systemd and cgroup v2: scripts/test --vm"]
fn making_namespaces_in_a_loop_does_not_use_up_the_host() {
    let free = || -> u64 {
        let text = fs::read_to_string("/proc/meminfo").expect("/proc/meminfo");
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).expect("a line");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    };
    let before = free();
    let script =
        "for i in $(seq 1 300); do unshare --user --net true 2>/dev/null; done; echo end; exec sleep 1000";
    let mut churn = Limited::start(None, script);
    assert_eq!(churn.lines.next().expect("it ends").expect("text"), "end");
    let after = free();
    assert!(after + (256 << 20) > before, "{} MiB of the host are gone", before.saturating_sub(after) >> 20);
    churn.end();
}
