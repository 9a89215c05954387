//! Each layer made unavailable in turn: an error that names it, and the program never started.
#![cfg(target_os = "linux")]

mod common;

use common::{PRIVATE_UID, policy, shell};
use sandbox::preflight::{self, Outcome};
use sandbox::{Error, FileRule, Launch, Layer, LayerState, Policy, PolicyError, Requirement};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

/// A policy with a folder into which the program would leave a mark, and the program that does.
struct Marked {
    folder: tempfile::TempDir,
    policy: Policy,
}

impl Marked {
    fn new() -> Marked {
        let folder = tempfile::tempdir().expect("folder");
        chown(folder.path(), Some(PRIVATE_UID), Some(PRIVATE_UID)).expect("chown");
        let mut policy = policy();
        policy
            .files
            .push(FileRule::writable(folder.path(), "/mark"));
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

/// Runs `test` in a thread for which the system calls `calls` (with the given bits in their first
/// argument, if any) answer with `errno`.
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
fn with_everything_there_the_program_runs() {
    let marked = Marked::new();
    let mut sandbox = marked.launch().spawn().expect("starts");
    assert!(sandbox.wait().expect("ends").success());
    assert!(marked.started());
}

#[test]
fn no_bubblewrap() {
    let marked = Marked::new();
    let result = marked.launch().bubblewrap("/nonexistent/bwrap").spawn();
    marked.assert_refused(result, Layer::Bubblewrap);
    let report = preflight::check(Some(Path::new("/nonexistent/bwrap")), 6);
    let probe = report.probe("bubblewrap").expect("probed");
    assert_eq!(probe.outcome, Outcome::Bad);
    assert!(
        probe
            .fix
            .as_deref()
            .is_some_and(|fix| fix.contains("bubblewrap"))
    );
}

#[test]
fn a_bubblewrap_that_others_could_replace() {
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
fn a_bubblewrap_that_lies() {
    // A program that ends without confining anything: no word from inside, so nothing started.
    let marked = Marked::new();
    let result = marked.launch().bubblewrap("/usr/bin/true").spawn();
    marked.assert_refused(result, Layer::Bubblewrap);
}

#[test]
fn no_user_namespaces() {
    let marked = Marked::new();
    let launch = marked.launch();
    let new_user = u64::try_from(libc::CLONE_NEWUSER).expect("positive");
    let calls = [
        (libc::SYS_clone, Some(new_user)),
        (libc::SYS_unshare, Some(new_user)),
    ];
    let (result, report) = without_calls(&calls, libc::EPERM, move || {
        (launch.spawn(), preflight::check(None, 6))
    });
    marked.assert_refused(result, Layer::Bubblewrap);
    for name in ["user-namespaces", "whole-launch"] {
        let probe = report.probe(name).expect("probed");
        assert_eq!(probe.outcome, Outcome::Bad, "{probe:?}");
        assert!(probe.fix.is_some(), "{probe:?}");
    }
}

#[test]
fn no_landlock() {
    let mut marked = Marked::new();
    let calls = [
        (libc::SYS_landlock_create_ruleset, None),
        (libc::SYS_landlock_add_rule, None),
        (libc::SYS_landlock_restrict_self, None),
    ];
    let launch = marked.launch();
    let (result, report) = without_calls(&calls, libc::ENOSYS, move || {
        (launch.spawn(), preflight::check(None, 6))
    });
    marked.assert_refused(result, Layer::Landlock);
    assert_eq!(report.landlock_abi, 0);
    assert_eq!(
        report.probe("landlock").expect("probed").outcome,
        Outcome::Bad
    );

    marked
        .policy
        .layers
        .set(Layer::Landlock, Requirement::Optional);
    let launch = marked.launch();
    let mut sandbox =
        without_calls(&calls, libc::ENOSYS, move || launch.spawn()).expect("optional");
    assert!(!sandbox.has(Layer::Landlock));
    let state = sandbox.layers().iter().find(|(l, _)| *l == Layer::Landlock);
    assert!(
        matches!(state, Some((_, LayerState::Missing(_)))),
        "{state:?}"
    );
    sandbox.wait().expect("ends");
    assert!(marked.started());
}

#[test]
fn a_landlock_that_is_too_old() {
    let mut marked = Marked::new();
    let kernel = preflight::check(None, 6).landlock_abi;
    // 9 is the highest that a policy can name: a kernel that has it is never too old, and there is
    // nothing to try.
    if kernel >= 9 {
        return;
    }
    marked.policy.landlock.abi = kernel + 1;
    let result = marked.launch().spawn();
    marked.assert_refused(result, Layer::Landlock);
}

#[test]
fn no_seccomp() {
    let mut marked = Marked::new();
    let calls = [(libc::SYS_seccomp, None)];
    let launch = marked.launch();
    let (result, report) = without_calls(&calls, libc::ENOSYS, move || {
        (launch.spawn(), preflight::check(None, 6))
    });
    marked.assert_refused(result, Layer::Seccomp);
    assert_eq!(
        report.probe("seccomp").expect("probed").outcome,
        Outcome::Bad
    );

    marked
        .policy
        .layers
        .set(Layer::Seccomp, Requirement::Optional);
    let launch = marked.launch();
    let mut sandbox =
        without_calls(&calls, libc::ENOSYS, move || launch.spawn()).expect("optional");
    assert!(!sandbox.has(Layer::Seccomp));
    sandbox.wait().expect("ends");
}

/// Runs `test` in a thread with a mount namespace of its own, in which `folder` is covered by an
/// empty one.
fn with_covered<T: Send + 'static>(
    folder: &'static str,
    test: impl FnOnce() -> T + Send + 'static,
) -> T {
    use nix::mount::{MsFlags, mount};
    std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).expect("own mounts");
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("private");
        mount(
            Some("none"),
            folder,
            Some("tmpfs"),
            MsFlags::MS_RDONLY,
            none,
        )
        .expect("cover");
        test()
    })
    .join()
    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// As on a machine with cgroups of version 1 or none at all.
fn without_cgroups<T: Send + 'static>(test: impl FnOnce() -> T + Send + 'static) -> T {
    with_covered("/sys/fs/cgroup", test)
}

#[test]
fn no_proc_to_mount() {
    let marked = Marked::new();
    let launch = marked.launch();
    // A part of /proc is covered, as container managers do: the kernel then refuses another /proc to
    // whoever is not the machine's root.
    let (result, report) = with_covered("/proc/irq", move || {
        (launch.spawn(), preflight::check(None, 6))
    });
    marked.assert_refused(result, Layer::Bubblewrap);
    let probe = report.probe("whole-launch").expect("probed");
    assert_eq!(probe.outcome, Outcome::Bad);
    assert!(
        probe
            .fix
            .as_deref()
            .is_some_and(|fix| fix.contains("/proc")),
        "{probe:?}"
    );
}

#[test]
fn no_keeper_of_limits() {
    let mut marked = Marked::new();
    marked.policy.limits.memory_bytes = Some(256 << 20);
    let launch = marked.launch();
    let (result, report) = without_cgroups(move || (launch.spawn(), preflight::check(None, 6)));
    marked.assert_refused(result, Layer::Limits);
    let probe = report.probe("limits").expect("probed");
    assert_eq!(probe.outcome, Outcome::Note, "{probe:?}");

    marked
        .policy
        .layers
        .set(Layer::Limits, Requirement::Optional);
    let launch = marked.launch();
    let mut sandbox = without_cgroups(move || launch.spawn()).expect("optional");
    assert!(matches!(sandbox.limits(), sandbox::LimitKeeper::Nobody(_)));
    assert!(!sandbox.has(Layer::Limits));
    sandbox.wait().expect("ends");
}

#[test]
fn root_without_a_private_uid() {
    let mut marked = Marked::new();
    marked.policy.identity.host_uid = None;
    let result = marked.launch().spawn();
    assert!(matches!(result, Err(Error::RootNeedsPrivateUid)));
    assert!(!marked.started());
}

#[test]
fn a_filtered_network_without_a_namespace() {
    let mut marked = Marked::new();
    marked.policy.network = sandbox::Network::Filtered;
    let result = marked.launch().spawn();
    assert!(matches!(result, Err(Error::NetworkNamespace(_))));
    assert!(!marked.started());
}

#[test]
fn a_required_file_that_is_not_there() {
    let mut marked = Marked::new();
    marked
        .policy
        .files
        .push(FileRule::read_only("/nonexistent/file"));
    let facts = sandbox::HostFacts::gather(&marked.policy).expect("facts");
    let program = sandbox::Program {
        path: "/usr/bin/true".into(),
        arguments: Vec::new(),
    };
    assert_eq!(
        marked.policy.plan(&facts, &program),
        Err(PolicyError::SourceMissing {
            path: "/nonexistent/file".into()
        })
    );
}

#[test]
fn a_folder_that_the_private_uid_cannot_reach() {
    let mut marked = Marked::new();
    let folder = tempfile::tempdir().expect("folder");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).expect("mode");
    let inner = folder.path().join("inner");
    std::fs::create_dir(&inner).expect("folder");
    marked
        .policy
        .files
        .push(FileRule::writable(&inner, "/inner"));
    let result = marked.launch().spawn();
    marked.assert_refused(result, Layer::Bubblewrap);
}
