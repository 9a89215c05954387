//! Makes each layer unavailable in turn: the error names it, and the program never starts.
#![cfg(target_os = "linux")]

mod common;

use common::{policy, private_uid, shell};
use sandbox::preflight::{self, Outcome};
use sandbox::{Error, FileRule, Launch, Layer, LayerState, Policy, PolicyError, Requirement};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

/// A policy and a program that creates a file if it is started.
struct Marked {
    folder: tempfile::TempDir,
    policy: Policy,
}

impl Marked {
    fn new() -> Marked {
        let folder = tempfile::tempdir().expect("folder");
        chown(folder.path(), Some(private_uid()), Some(private_uid())).expect("chown");
        let mut policy = policy();
        policy.files.push(FileRule::writable(folder.path(), "/mark"));
        Marked { folder, policy }
    }

    fn launch(&self) -> Launch {
        Launch::new(shell(&self.policy, "echo started > /mark/started"))
    }

    fn started(&self) -> bool {
        self.folder.path().join("started").exists()
    }

    fn assert_refused(&self, result: Result<sandbox::Sandbox, Error>, layer: Layer) {
        match result {
            Err(error) => {
                assert_eq!(error.missing_layer(), Some(layer), "{error}");
                println!("{error}");
            }
            Ok(mut sandbox) => {
                sandbox.wait().expect("ends");
                panic!("it started");
            }
        }
        assert!(!self.started(), "the program ran");
    }
}

/// Runs `test` in a thread in which the system calls `calls` (with the given bits in their first
/// argument, if any) fail with `errno`.
fn without_calls<T: Send + 'static>(
    calls: &[(i64, Option<u64>)],
    errno: i32,
    test: impl FnOnce() -> T + Send + 'static,
) -> T {
    let rules = calls
        .iter()
        .map(|(number, bits)| {
            let rules = bits
                .iter()
                .map(|bits| {
                    let condition = SeccompCondition::new(
                        0,
                        SeccompCmpArgLen::Dword,
                        SeccompCmpOp::MaskedEq(*bits),
                        *bits,
                    );
                    SeccompRule::new(vec![condition.expect("condition")]).expect("rule")
                })
                .collect();
            (*number, rules)
        })
        .collect();
    let filter: BpfProgram = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(u32::try_from(errno).expect("positive")),
        std::env::consts::ARCH.try_into().expect("known"),
    )
    .expect("filter")
    .try_into()
    .expect("program");
    std::thread::spawn(move || {
        seccompiler::apply_filter(&filter).expect("outer filter");
        test()
    })
    .join()
    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[test]
fn with_every_layer_available_the_program_runs() {
    let marked = Marked::new();
    let mut sandbox = marked.launch().spawn().expect("starts");
    assert!(sandbox.wait().expect("ends").success());
    assert!(marked.started());
}

#[test]
fn a_missing_bubblewrap_is_refused() {
    let marked = Marked::new();
    let result = marked.launch().bubblewrap("/nonexistent/bwrap").spawn();
    marked.assert_refused(result, Layer::Bubblewrap);
    let report = preflight::check(Some(Path::new("/nonexistent/bwrap")), 6);
    let probe = report.probe("bubblewrap").expect("probed");
    assert_eq!(probe.outcome, Outcome::Bad);
    assert!(probe.fix.as_deref().is_some_and(|fix| fix.contains("bubblewrap")));
}

#[test]
fn a_bubblewrap_that_others_could_replace_is_refused() {
    let marked = Marked::new();
    let folder = tempfile::tempdir().expect("folder");
    let copy = folder.path().join("bwrap");
    std::fs::copy("/usr/bin/bwrap", &copy).expect("copy");
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("mode");
    };
    // The temporary folder's parent is writable by everybody.
    let result = marked.launch().bubblewrap(&copy).spawn();
    marked.assert_refused(result, Layer::Bubblewrap);
    mode(&copy, 0o4755);
    let result = marked.launch().bubblewrap(&copy).spawn();
    marked.assert_refused(result, Layer::Bubblewrap);
}

#[test]
fn a_bubblewrap_that_does_nothing_is_refused() {
    // The program ends without confining anything, so stage 2 never reports.
    let marked = Marked::new();
    let result = marked.launch().bubblewrap("/usr/bin/true").spawn();
    marked.assert_refused(result, Layer::Bubblewrap);
}

#[test]
fn missing_user_namespaces_are_refused() {
    let marked = Marked::new();
    let launch = marked.launch();
    let new_user = u64::try_from(libc::CLONE_NEWUSER).expect("positive");
    let calls = [(libc::SYS_clone, Some(new_user)), (libc::SYS_unshare, Some(new_user))];
    let (result, report) =
        without_calls(&calls, libc::EPERM, move || (launch.spawn(), preflight::check(None, 6)));
    marked.assert_refused(result, Layer::Bubblewrap);
    for name in ["user-namespaces", "whole-launch"] {
        let probe = report.probe(name).expect("probed");
        assert_eq!(probe.outcome, Outcome::Bad, "{probe:?}");
        assert!(probe.fix.is_some(), "{probe:?}");
    }
}

#[test]
fn missing_landlock_is_refused_unless_optional() {
    let mut marked = Marked::new();
    let calls = [
        (libc::SYS_landlock_create_ruleset, None),
        (libc::SYS_landlock_add_rule, None),
        (libc::SYS_landlock_restrict_self, None),
    ];
    let launch = marked.launch();
    let (result, report) =
        without_calls(&calls, libc::ENOSYS, move || (launch.spawn(), preflight::check(None, 6)));
    marked.assert_refused(result, Layer::Landlock);
    assert_eq!(report.landlock_abi, 0);
    assert_eq!(report.probe("landlock").expect("probed").outcome, Outcome::Bad);

    marked.policy.layers.set(Layer::Landlock, Requirement::Optional);
    let launch = marked.launch();
    let mut sandbox = without_calls(&calls, libc::ENOSYS, move || launch.spawn()).expect("optional");
    assert!(!sandbox.has(Layer::Landlock));
    let state = sandbox.layers().iter().find(|(l, _)| *l == Layer::Landlock);
    assert!(matches!(state, Some((_, LayerState::Missing(_)))), "{state:?}");
    sandbox.wait().expect("ends");
    assert!(marked.started());
}

#[test]
fn an_old_landlock_is_refused() {
    let mut marked = Marked::new();
    let kernel = preflight::check(None, 6).landlock_abi;
    // A policy can require at most ABI 9, so a kernel with ABI 9 is never too old.
    if kernel >= 9 {
        return;
    }
    marked.policy.landlock.abi = kernel + 1;
    let result = marked.launch().spawn();
    marked.assert_refused(result, Layer::Landlock);
}

#[test]
fn missing_seccomp_is_refused_unless_optional() {
    let mut marked = Marked::new();
    let calls = [(libc::SYS_seccomp, None)];
    let launch = marked.launch();
    let (result, report) =
        without_calls(&calls, libc::ENOSYS, move || (launch.spawn(), preflight::check(None, 6)));
    marked.assert_refused(result, Layer::Seccomp);
    assert_eq!(report.probe("seccomp").expect("probed").outcome, Outcome::Bad);

    marked.policy.layers.set(Layer::Seccomp, Requirement::Optional);
    let launch = marked.launch();
    let mut sandbox = without_calls(&calls, libc::ENOSYS, move || launch.spawn()).expect("optional");
    assert!(!sandbox.has(Layer::Seccomp));
    sandbox.wait().expect("ends");
}

/// Runs `test` in a thread with its own mount namespace, in which an empty tmpfs shadows `folder`.
fn with_covered<T: Send + 'static>(folder: &'static str, test: impl FnOnce() -> T + Send + 'static) -> T {
    use nix::mount::{MsFlags, mount};
    std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).expect("own mounts");
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("private");
        mount(Some("none"), folder, Some("tmpfs"), MsFlags::MS_RDONLY, none).expect("cover");
        test()
    })
    .join()
    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Simulates a machine without cgroup v2.
fn without_cgroups<T: Send + 'static>(test: impl FnOnce() -> T + Send + 'static) -> T {
    with_covered("/sys/fs/cgroup", test)
}

#[test]
fn a_masked_proc_is_refused() {
    let marked = Marked::new();
    let launch = marked.launch();
    // Container managers mask parts of /proc. The kernel then refuses to mount another /proc in a
    // user namespace.
    let (result, report) = with_covered("/proc/irq", move || (launch.spawn(), preflight::check(None, 6)));
    marked.assert_refused(result, Layer::Bubblewrap);
    let probe = report.probe("whole-launch").expect("probed");
    assert_eq!(probe.outcome, Outcome::Bad);
    assert!(probe.fix.as_deref().is_some_and(|fix| fix.contains("/proc")), "{probe:?}");
}

#[test]
fn unavailable_limits_are_refused_unless_optional() {
    let mut marked = Marked::new();
    marked.policy.limits.memory_bytes = Some(256 << 20);
    let launch = marked.launch();
    let (result, report) = without_cgroups(move || (launch.spawn(), preflight::check(None, 6)));
    marked.assert_refused(result, Layer::Limits);
    let probe = report.probe("limits").expect("probed");
    assert_eq!(probe.outcome, Outcome::Note, "{probe:?}");

    marked.policy.layers.set(Layer::Limits, Requirement::Optional);
    let launch = marked.launch();
    let mut sandbox = without_cgroups(move || launch.spawn()).expect("optional");
    assert!(matches!(sandbox.limits(), sandbox::LimitEnforcer::Unavailable(_)));
    assert!(!sandbox.has(Layer::Limits));
    sandbox.wait().expect("ends");
}

/// Shadows `/proc/sys/user`. Another whole `/proc` is mounted first: without one the kernel refuses a new `/proc` in a user
/// namespace, and bubblewrap would fail for that reason.
fn without_user_settings<T: Send + 'static>(test: impl FnOnce() -> T + Send + 'static) -> T {
    use nix::mount::{MsFlags, mount};
    let folder = tempfile::tempdir().expect("folder");
    with_covered("/proc/sys/user", move || {
        mount(Some("proc"), folder.path(), Some("proc"), MsFlags::empty(), None::<&str>)
            .expect("another /proc");
        let result = test();
        nix::mount::umount(folder.path()).expect("unmount");
        result
    })
}

/// The bounds of namespaces cannot be set where `/proc/sys/user` does not show them.
#[test]
fn unbounded_namespaces_are_refused_unless_optional() {
    let mut marked = Marked::new();
    let launch = marked.launch();
    let result = without_user_settings(move || launch.spawn());
    marked.assert_refused(result, Layer::Limits);
    marked.policy.layers.set(Layer::Limits, Requirement::Optional);
    let launch = marked.launch();
    let mut sandbox = without_user_settings(move || launch.spawn()).expect("optional");
    assert!(!sandbox.has(Layer::Limits));
    sandbox.wait().expect("ends");
}

/// The number of files in memory cannot be bounded on a kernel without `fspick`.
#[test]
fn unbounded_files_in_memory_are_refused() {
    let marked = Marked::new();
    let launch = marked.launch();
    let result = without_calls(&[(libc::SYS_fspick, None)], libc::ENOSYS, move || launch.spawn());
    marked.assert_refused(result, Layer::Limits);
}

#[test]
fn a_uid_that_another_process_has_is_refused() {
    use std::os::unix::process::CommandExt;
    let mut marked = Marked::new();
    let uid = private_uid();
    let mut other =
        std::process::Command::new("sleep").arg("1000").uid(uid).gid(uid).spawn().expect("another process");
    let result = marked.launch().spawn();
    marked.assert_refused(result, Layer::Identity);
    // The limit with which stage 1 finds this out is not left to the program.
    other.kill().expect("kill");
    other.wait().expect("reap");
    marked.policy.limits.open_files = 300;
    let plan =
        shell(&marked.policy, "for i in 1 2 3 4 5 6; do sleep 0.1 & done; wait; echo x > /mark/started");
    let mut sandbox = Launch::new(plan).spawn().expect("starts");
    assert!(sandbox.wait().expect("ends").success());
    assert!(marked.started());
}

#[test]
fn a_terminal_is_refused() {
    use std::os::fd::OwnedFd;
    let marked = Marked::new();
    let terminal = || -> OwnedFd {
        let flags = nix::fcntl::OFlag::O_RDWR | nix::fcntl::OFlag::O_NOCTTY;
        let pair = nix::pty::posix_openpt(flags).expect("a terminal");
        pair.into()
    };
    for (number, launch) in [
        (0, marked.launch().stdin(sandbox::Stdio::Descriptor(terminal()))),
        (1, marked.launch().stdout(sandbox::Stdio::Descriptor(terminal()))),
        (2, marked.launch().stderr(sandbox::Stdio::Descriptor(terminal()))),
        (7, marked.launch().descriptor(7, terminal())),
    ] {
        let result = launch.spawn();
        assert!(matches!(result, Err(Error::Terminal(named)) if named == number), "{number}: {result:?}");
    }
    assert!(!marked.started());
}

#[test]
fn root_without_a_private_uid_is_refused() {
    let mut marked = Marked::new();
    marked.policy.identity.host_uid = None;
    let result = marked.launch().spawn();
    assert!(matches!(result, Err(Error::RootNeedsPrivateUid)));
    assert!(!marked.started());
}

#[test]
fn a_filtered_network_without_a_namespace_is_refused() {
    let mut marked = Marked::new();
    marked.policy.network = sandbox::Network::Filtered;
    let result = marked.launch().spawn();
    assert!(matches!(result, Err(Error::NetworkNamespace(_))));
    assert!(!marked.started());
}

#[test]
fn a_missing_required_file_is_refused() {
    let mut marked = Marked::new();
    marked.policy.files.push(FileRule::read_only("/nonexistent/file"));
    let facts = sandbox::HostFacts::gather(&marked.policy).expect("facts");
    let program = sandbox::Program { path: "/usr/bin/true".into(), arguments: Vec::new() };
    assert_eq!(
        marked.policy.plan(&facts, &program),
        Err(PolicyError::SourceMissing { path: "/nonexistent/file".into() })
    );
}

#[test]
fn a_folder_that_the_private_uid_cannot_reach_is_refused() {
    let mut marked = Marked::new();
    let folder = tempfile::tempdir().expect("folder");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).expect("mode");
    let inner = folder.path().join("inner");
    std::fs::create_dir(&inner).expect("folder");
    marked.policy.files.push(FileRule::writable(&inner, "/inner"));
    let result = marked.launch().spawn();
    marked.assert_refused(result, Layer::Bubblewrap);
}
