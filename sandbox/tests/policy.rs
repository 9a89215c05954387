//! Properties of policies and plans.

use proptest::prelude::*;
use sandbox::{
    Argument, Condition, DeviceRule, FileRule, HostFacts, Identity, Layer, Limits, Network, PathKind, Policy,
    PolicyError, Program, Requirement, SandboxPlan, SyscallErrno, SyscallRule, Test, Value,
};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn path() -> impl Strategy<Value = PathBuf> {
    proptest::collection::vec("[a-c]{1,2}", 1..4).prop_map(|parts| {
        let mut path = PathBuf::from("/");
        path.extend(parts);
        path
    })
}

fn rule() -> impl Strategy<Value = FileRule> {
    let source = || {
        proptest::option::of(
            path().prop_map(|p| Path::new("/host-side").join(p.strip_prefix("/").expect("absolute"))),
        )
    };
    prop_oneof![
        (path(), source(), any::<bool>(), any::<bool>()).prop_map(|(path, source, execute, optional)| {
            FileRule::ReadOnly { path, source, execute, optional }
        }),
        (path(), source()).prop_map(|(path, source)| FileRule::Writable { path, source }),
        (path(), 1u64..1 << 40).prop_map(|(path, size_bytes)| FileRule::Temporary { path, size_bytes }),
        (path(), "[ -~\n]{0,40}").prop_map(|(path, text)| FileRule::Synthetic { path, text }),
        (path(), path()).prop_map(|(path, target)| FileRule::Link { path, target }),
        path().prop_map(|path| FileRule::Hidden { path }),
    ]
}

fn network() -> impl Strategy<Value = Network> {
    prop_oneof![
        Just(Network::None),
        (1u16..).prop_map(|port| Network::Proxy { port }),
        Just(Network::Filtered),
        Just(Network::Host),
    ]
}

fn limits() -> impl Strategy<Value = Limits> {
    (
        proptest::option::of((1u64 << 20)..1 << 50),
        proptest::option::of(3u32..100_000),
        proptest::option::of(1u32..10_000),
        16u64..1_048_576,
    )
        .prop_map(|(memory_bytes, processes, cpu_percent, open_files)| Limits {
            memory_bytes,
            processes,
            cpu_percent,
            open_files,
        })
}

fn condition() -> impl Strategy<Value = Condition> {
    let values = || {
        proptest::collection::vec(
            prop_oneof![any::<u32>().prop_map(Value::Number), Just(Value::Name("AF_UNIX".to_owned())),],
            1..4,
        )
    };
    let test = prop_oneof![
        values().prop_map(Test::OneOf),
        values().prop_map(Test::NoneOf),
        values().prop_map(Test::AnyBitOf),
        values().prop_map(Test::NoBitOf),
    ];
    (0u8..6, test).prop_map(|(arg, test)| Condition { arg, test })
}

fn syscall_rule() -> impl Strategy<Value = SyscallRule> {
    (
        proptest::collection::vec("[a-z]{1,8}", 1..3),
        proptest::collection::vec(condition(), 0..3),
        prop_oneof![Just(SyscallErrno::Eperm), Just(SyscallErrno::Enosys)],
        "[a-z ]{1,20}[a-z]",
    )
        .prop_map(|(calls, when, answer, reason)| SyscallRule { calls, when, answer, reason })
}

prop_compose! {
    fn policy()(
        name in "[a-z][a-z0-9-]{0,20}[a-z0-9]",
        uid in 1u32..70_000,
        host_uid in proptest::option::of(1u32..70_000),
        network in network(),
        limits in limits(),
        abi in 1u8..=9,
        optional in proptest::sample::subsequence(vec![Layer::Landlock, Layer::Seccomp, Layer::Limits], 0..3),
        environment in proptest::collection::btree_map("[A-Z_][A-Z0-9_]{0,8}", "[ -~\n]{0,20}", 0..4),
        devices in proptest::collection::vec("/dev/[a-c]{1,3}", 0..2),
        files in proptest::collection::vec(rule(), 0..8),
        rules in proptest::collection::vec(syscall_rule(), 0..4),
    ) -> Policy {
        let mut policy = Policy::new(name);
        policy.identity = Identity { uid, gid: uid, host_uid };
        policy.network = network;
        policy.limits = limits;
        policy.landlock.abi = abi;
        for layer in optional {
            policy.layers.set(layer, Requirement::Optional);
        }
        policy.environment = environment;
        policy.devices = devices
            .into_iter()
            .map(|path| DeviceRule { path: path.into(), optional: true })
            .collect();
        let mut seen = BTreeSet::new();
        policy.files = files
            .into_iter()
            .filter(|rule| seen.insert(rule.path().to_owned()))
            .collect();
        policy.syscalls.refuse = rules;
        policy
    }
}

/// A host on which every path of the policy is a folder.
fn all_folders(policy: &Policy) -> HostFacts {
    HostFacts::from_paths(policy.host_paths().into_iter().map(|path| (path, PathKind::Folder)))
}

fn true_program() -> Program {
    Program { path: "/usr/bin/true".into(), arguments: Vec::new() }
}

fn plan(policy: &Policy) -> SandboxPlan {
    policy.plan(&all_folders(policy), &true_program()).expect("a valid policy on a host that has everything")
}

fn words(plan: &SandboxPlan) -> Vec<String> {
    plan.bubblewrap_arguments()
        .iter()
        .map(|argument| match argument {
            Argument::Text(text) => text.clone(),
            Argument::Data(_) => "FD".to_owned(),
        })
        .collect()
}

/// The destination of each mount and its position in the argument list.
fn destinations(plan: &SandboxPlan) -> Vec<(PathBuf, usize)> {
    let words = words(plan);
    words
        .iter()
        .enumerate()
        .filter_map(|(at, word)| {
            let offset = match word.as_str() {
                "--bind" | "--ro-bind" | "--dev-bind" | "--ro-bind-data" | "--symlink" => 2,
                "--tmpfs" => 1,
                _ => return None,
            };
            Some((PathBuf::from(&words[at + offset]), at))
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn a_written_policy_reads_back(policy in policy()) {
        let text = policy.to_string();
        let again = Policy::from_toml(&text).expect("reads what it wrote");
        prop_assert_eq!(again, policy);
    }

    #[test]
    fn reading_never_panics(policy in policy(), at in any::<prop::sample::Index>(), noise in "\\PC{0,6}") {
        let mut text = policy.to_string();
        let mut at = at.index(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        text.insert_str(at, &noise);
        // A policy that was read is valid; planning may succeed or fail, but must not panic.
        if let Ok(policy) = Policy::from_toml(&text) {
            prop_assert_eq!(policy.validate(), Ok(()));
            let _ = policy.plan(&all_folders(&policy), &true_program());
        }
    }

    #[test]
    fn planning_is_deterministic(policy in policy()) {
        prop_assert_eq!(plan(&policy), plan(&policy));
    }

    #[test]
    fn the_order_of_rules_does_not_matter(policy in policy()) {
        let mut reversed = policy.clone();
        reversed.files.reverse();
        prop_assert_eq!(words(&plan(&policy)), words(&plan(&reversed)));
    }

    #[test]
    fn parents_are_mounted_before_children(policy in policy()) {
        let destinations = destinations(&plan(&policy));
        for (child, at) in &destinations {
            for (parent, before) in &destinations {
                if child != parent && child.starts_with(parent) && !child.starts_with("/dev") {
                    prop_assert!(before < at, "{:?} after {:?}", parent, child);
                }
            }
        }
    }

    #[test]
    fn only_named_host_folders_are_bound(policy in policy()) {
        let words = words(&plan(&policy));
        for (at, word) in words.iter().enumerate() {
            let source = words.get(at + 1).map(PathBuf::from).unwrap_or_default();
            let named = |wanted: fn(&FileRule) -> bool| {
                policy.files.iter().any(|rule| wanted(rule) && rule.source() == Some(&source))
            };
            match word.as_str() {
                "--ro-bind" => {
                    let shown = named(|rule| matches!(rule, FileRule::ReadOnly { .. }));
                    prop_assert!(shown, "{:?}", source);
                }
                "--bind" => {
                    let written = named(|rule| matches!(rule, FileRule::Writable { .. }));
                    prop_assert!(written, "{:?}", source);
                }
                "--dev-bind" => {
                    let harmless = ["null", "zero", "full", "random", "urandom"];
                    let harmless = harmless.iter().any(|name| source == Path::new("/dev").join(name));
                    prop_assert!(harmless || policy.devices.iter().any(|d| d.path == source), "{:?}", source);
                }
                "--dev" => prop_assert!(false, "bubblewrap's own /dev has terminals"),
                _ => {}
            }
        }
    }

    #[test]
    fn the_layers_are_in_the_arguments(policy in policy()) {
        let words = words(&plan(&policy));
        for needed in ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts",
                       "--unshare-cgroup", "--new-session", "--die-with-parent", "--cap-drop"] {
            prop_assert!(words.iter().any(|w| w == needed), "{}", needed);
        }
        let own_network = matches!(policy.network, Network::None | Network::Proxy { .. });
        prop_assert_eq!(words.iter().any(|w| w == "--unshare-net"), own_network);
        prop_assert!(words.ends_with(&["--remount-ro".to_owned(), "/".to_owned()]));
        prop_assert!(!words.iter().any(|w| w == "--share-net"));
        // Only what stage 2 needs and drops.
        let added: Vec<&str> =
            words.windows(2).filter(|pair| pair[0] == "--cap-add").map(|pair| pair[1].as_str()).collect();
        prop_assert_eq!(added, ["CAP_SYS_ADMIN"]);
    }

    #[test]
    fn every_mount_is_expected_by_stage_2(policy in policy()) {
        let plan = plan(&policy);
        let words = words(&plan);
        for (path, at) in destinations(&plan) {
            if words[at] != "--symlink" {
                prop_assert!(plan.mounts().iter().any(|m| m.path == path), "{:?}", path);
            }
        }
    }

    #[test]
    fn nothing_writable_is_executable(policy in policy()) {
        let plan = plan(&policy);
        for rule in &policy.files {
            if let FileRule::Writable { path, .. } | FileRule::Temporary { path, .. } = rule {
                let mount = plan.mounts().iter().find(|m| m.path == *path).expect("mounted");
                prop_assert!(!mount.read_only);
                let text = plan.explain();
                let line = format!("  {}  to read and execute", path.display());
                prop_assert!(!text.contains(&line));
            }
        }
    }

    #[test]
    fn the_explanation_names_everything(policy in policy()) {
        let text = plan(&policy).explain();
        for rule in &policy.files {
            prop_assert!(text.contains(&rule.path().display().to_string()));
        }
        for rule in &policy.syscalls.refuse {
            prop_assert!(text.contains(&rule.reason));
        }
        for name in policy.environment.keys() {
            prop_assert!(text.contains(name));
        }
        for word in words(&plan(&policy)).iter().filter(|w| w.starts_with("--")) {
            prop_assert!(text.contains(word));
        }
    }

    #[test]
    fn paths_that_are_not_normalized_are_refused(start in path(), middle in "(\\.|\\.\\.|)", end in "[a-c]{1,2}") {
        let crooked = format!("{}/{middle}/{end}", start.display());
        let mut policy = Policy::new("test");
        policy.files = vec![FileRule::temporary(&crooked, 1)];
        prop_assert_eq!(policy.validate(), Err(PolicyError::Path(crooked.clone().into())));
        policy.files = vec![FileRule::writable(&crooked, "/inside")];
        prop_assert_eq!(policy.validate(), Err(PolicyError::Path(crooked.into())));
    }
}

#[test]
fn unknown_keys_are_refused_everywhere() {
    for text in [
        "name = \"a\"\nunknown = 1",
        "name = \"a\"\n[limits]\nmemory = 1",
        "name = \"a\"\n[[files]]\naccess = \"read-only\"\npath = \"/usr\"\nexec = true",
        "name = \"a\"\n[layers]\nlandlok = \"off\"",
        "name = \"a\"\n[network]\nmode = \"proxy\"\nport = 1\nallow = []",
        "name = \"a\"\n[[syscalls.refuse]]\ncalls = [\"bpf\"]\nreason = \"x\"\nwhen = [{ arg = 0 }]",
    ] {
        assert!(matches!(Policy::from_toml(text), Err(PolicyError::TomlRead(_))), "{text}");
    }
}

#[test]
fn a_short_policy_uses_defaults_for_the_rest() {
    let policy = Policy::from_toml(
        r#"
        name = "browser"
        working_folder = "/home/browser"
        [network]
        mode = "proxy"
        port = 3128
        [layers]
        limits = "optional"
        [environment]
        HOME = "/home/browser"
        [[files]]
        access = "read-only"
        path = "/usr"
        execute = true
        [[files]]
        access = "writable"
        path = "/home/browser"
        source = "/srv/profile"
        [[files]]
        access = "hidden"
        path = "/usr/local"
        "#,
    )
    .expect("reads");
    assert_eq!(policy.network, Network::Proxy { port: 3128 });
    assert_eq!(policy.layers.requirement(Layer::Limits), Requirement::Optional);
    assert_eq!(policy.layers.requirement(Layer::Landlock), Requirement::Required);
    assert_eq!(policy.syscalls, sandbox::SyscallPolicy::default());
    let text = plan(&policy).explain();
    assert!(text.contains("/home/browser  to read and write, never execute (it is /srv/profile outside)"));
    assert!(text.contains("/usr/local  hidden"));
}

#[test]
fn invalid_policies_are_refused() {
    let refused = |change: fn(&mut Policy)| {
        let mut policy = Policy::new("test");
        change(&mut policy);
        policy.validate().expect_err("refused")
    };
    assert_eq!(refused(|p| p.identity.uid = 0), PolicyError::Root);
    assert_eq!(refused(|p| p.identity.host_uid = Some(0)), PolicyError::Root);
    assert_eq!(refused(|p| p.network = Network::Proxy { port: 0 }), PolicyError::Port);
    assert_eq!(
        refused(|p| p.layers.set(Layer::Bubblewrap, Requirement::Off)),
        PolicyError::CannotBeOff(Layer::Bubblewrap)
    );
    assert_eq!(
        refused(|p| p.layers.set(Layer::Files, Requirement::Optional)),
        PolicyError::CannotBeOptional(Layer::Files)
    );
    assert_eq!(refused(|p| p.files = vec![FileRule::read_only("/")]), PolicyError::WholeRoot);
    assert!(matches!(
        refused(|p| p.files = vec![FileRule::writable("/x", "/proc/x")]),
        PolicyError::Reserved(_)
    ));
    assert!(matches!(
        refused(|p| p.files = vec![FileRule::writable("/x", "/dev/x")]),
        PolicyError::Reserved(_)
    ));
    assert!(matches!(
        refused(|p| p.files = vec![FileRule::hidden("/x"), FileRule::read_only("/x")]),
        PolicyError::Twice(_)
    ));
    assert!(matches!(
        refused(|p| {
            p.environment.insert("A=B".into(), String::new());
        }),
        PolicyError::Environment(_)
    ));
    assert!(matches!(refused(|p| p.name = "Not a name".into()), PolicyError::Name(_)));
    assert!(matches!(refused(|p| p.limits.memory_bytes = Some(1)), PolicyError::Limit(..)));
}

#[test]
fn rules_check_the_kind_of_the_host_path() {
    let kinds = |kind: PathKind| HostFacts::from_paths([(PathBuf::from("/run/thing"), kind)]);
    let mut policy = Policy::new("test");
    policy.files = vec![FileRule::read_only("/run/thing")];
    let result = |policy: &Policy, kind| policy.plan(&kinds(kind), &true_program());
    assert_eq!(result(&policy, PathKind::Socket), Err(PolicyError::IsSocket("/run/thing".into())));
    assert!(matches!(result(&policy, PathKind::Missing), Err(PolicyError::SourceMissing { .. })));
    assert!(result(&policy, PathKind::File).is_ok());
    policy.files = vec![FileRule::Socket { path: "/run/thing".into(), source: None }];
    assert!(result(&policy, PathKind::Socket).is_ok());
    assert!(matches!(result(&policy, PathKind::File), Err(PolicyError::WrongKind { .. })));
    policy.files = vec![FileRule::read_only_if_present("/run/thing")];
    let plan = result(&policy, PathKind::Missing).expect("optional");
    assert_eq!(plan.absent(), [PathBuf::from("/run/thing")]);
    policy.files = vec![FileRule::writable("/run/thing", "/data")];
    let link = PathKind::Link {
        target: "/etc".into(),
        resolved: "/etc".into(),
        ends_at: Box::new(PathKind::Folder),
    };
    assert!(matches!(result(&policy, link), Err(PolicyError::WrongKind { .. })));
    let nothing = HostFacts::default();
    assert!(matches!(policy.plan(&nothing, &true_program()), Err(PolicyError::FactMissing(_))));
}

#[test]
fn a_merged_usr_becomes_links_and_a_split_one_binds() {
    let policy = {
        let mut policy = Policy::new("test");
        policy.files = vec![FileRule::programs("/usr"), FileRule::programs_if_present("/lib")];
        policy
    };
    let facts = |lib: PathKind| {
        HostFacts::from_paths([(PathBuf::from("/usr"), PathKind::Folder), (PathBuf::from("/lib"), lib)])
    };
    let merged = PathKind::Link {
        target: "usr/lib".into(),
        resolved: "/usr/lib".into(),
        ends_at: Box::new(PathKind::Folder),
    };
    let text = |lib| {
        let plan = policy.plan(&facts(lib), &true_program()).expect("plan");
        words(&plan).join(" ")
    };
    assert!(text(merged).contains("--symlink usr/lib /lib"));
    assert!(text(PathKind::Folder).contains("--ro-bind /lib /lib"));
}

#[test]
fn hidden_paths_are_covered_only_where_they_exist() {
    let mut policy = Policy::new("test");
    policy.files =
        vec![FileRule::read_only("/usr"), FileRule::hidden("/usr/local"), FileRule::hidden("/home")];
    let facts = |kind| {
        HostFacts::from_paths([
            (PathBuf::from("/usr"), PathKind::Folder),
            (PathBuf::from("/usr/local"), kind),
        ])
    };
    let text = |kind| {
        let plan = policy.plan(&facts(kind), &true_program()).expect("plan");
        words(&plan).join(" ")
    };
    assert!(text(PathKind::Folder).contains("--perms 0000 --tmpfs /usr/local --remount-ro /usr/local"));
    assert!(text(PathKind::File).contains("--perms 0000 --ro-bind-data FD /usr/local"));
    assert!(!text(PathKind::Missing).contains("/usr/local"));
    assert!(!text(PathKind::Folder).contains("/home"));
}
