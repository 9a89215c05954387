//! The system call policy as data.
//!
//! The default rules are in `syscalls.toml` next to this file, each with its reason. A policy may
//! have its own list instead. `linux/seccomp.rs` compiles them to BPF.

use crate::error::PolicyError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Which system calls are refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyscallPolicy {
    /// The kinds of namespaces that the program may create for its children, and how many of each may
    /// exist at the same time. Kinds that are not named are refused. Chromium's own sandbox needs `user`,
    /// `pid` and `network`; most programs need none.
    #[serde(default = "default_nested_namespaces")]
    pub nested_namespaces: BTreeMap<NestedNamespace, u32>,
    /// The refused system calls.
    #[serde(default = "default_refusals")]
    pub refuse: Vec<SyscallRule>,
}

/// A kind of namespace that a program may be allowed to create inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum NestedNamespace {
    User,
    Pid,
    Network,
    Mount,
    Ipc,
    Uts,
    Cgroup,
    Time,
}

impl NestedNamespace {
    /// Every kind.
    pub const ALL: [NestedNamespace; 8] = [
        NestedNamespace::User,
        NestedNamespace::Pid,
        NestedNamespace::Network,
        NestedNamespace::Mount,
        NestedNamespace::Ipc,
        NestedNamespace::Uts,
        NestedNamespace::Cgroup,
        NestedNamespace::Time,
    ];

    /// The file in `/proc/sys/user` that bounds their number.
    pub fn setting(self) -> &'static str {
        match self {
            NestedNamespace::User => "max_user_namespaces",
            NestedNamespace::Pid => "max_pid_namespaces",
            NestedNamespace::Network => "max_net_namespaces",
            NestedNamespace::Mount => "max_mnt_namespaces",
            NestedNamespace::Ipc => "max_ipc_namespaces",
            NestedNamespace::Uts => "max_uts_namespaces",
            NestedNamespace::Cgroup => "max_cgroup_namespaces",
            NestedNamespace::Time => "max_time_namespaces",
        }
    }

    /// The flag of `clone` and `unshare`.
    pub fn flag(self) -> u32 {
        match self {
            NestedNamespace::User => 0x1000_0000,
            NestedNamespace::Pid => 0x2000_0000,
            NestedNamespace::Network => 0x4000_0000,
            NestedNamespace::Mount => 0x0002_0000,
            NestedNamespace::Ipc => 0x0800_0000,
            NestedNamespace::Uts => 0x0400_0000,
            NestedNamespace::Cgroup => 0x0200_0000,
            NestedNamespace::Time => 0x0000_0080,
        }
    }
}

impl fmt::Display for NestedNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // "max_user_namespaces"
        let name = self.setting().strip_prefix("max_").and_then(|name| name.strip_suffix("_namespaces"));
        f.write_str(name.unwrap_or_default())
    }
}

/// A rule that refuses system calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyscallRule {
    /// Names of system calls.
    pub calls: Vec<String>,
    /// Conditions on the arguments; all must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub when: Vec<Condition>,
    /// The error that the caller gets.
    #[serde(default)]
    pub answer: SyscallErrno,
    /// Why the calls are refused.
    pub reason: String,
}

/// The error that the caller of a refused system call gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SyscallErrno {
    /// "Operation not permitted".
    #[default]
    Eperm,
    /// "Function not implemented". Callers fall back to the older call.
    Enosys,
}

/// A condition on one argument. Only the lower 32 bits are compared. The kernel ignores the upper
/// half of these arguments, so it cannot be used to bypass a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "WrittenCondition", into = "WrittenCondition")]
pub struct Condition {
    /// The index of the argument, from 0.
    pub arg: u8,
    /// The test on its value.
    pub test: Test,
}

/// The TOML form of a condition: the test's name is a key next to `arg`.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCondition {
    arg: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    one_of: Option<Vec<Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    none_of: Option<Vec<Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    any_bit_of: Option<Vec<Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    no_bit_of: Option<Vec<Value>>,
}

impl TryFrom<WrittenCondition> for Condition {
    type Error = &'static str;

    fn try_from(written: WrittenCondition) -> Result<Self, Self::Error> {
        let mut tests = [
            written.one_of.map(Test::OneOf),
            written.none_of.map(Test::NoneOf),
            written.any_bit_of.map(Test::AnyBitOf),
            written.no_bit_of.map(Test::NoBitOf),
        ]
        .into_iter()
        .flatten();
        match (tests.next(), tests.next()) {
            (Some(test), None) => Ok(Condition { arg: written.arg, test }),
            _ => Err("a condition has exactly one of one_of, none_of, any_bit_of, no_bit_of"),
        }
    }
}

impl From<Condition> for WrittenCondition {
    fn from(condition: Condition) -> Self {
        let mut written = WrittenCondition { arg: condition.arg, ..WrittenCondition::default() };
        match condition.test {
            Test::OneOf(values) => written.one_of = Some(values),
            Test::NoneOf(values) => written.none_of = Some(values),
            Test::AnyBitOf(values) => written.any_bit_of = Some(values),
            Test::NoBitOf(values) => written.no_bit_of = Some(values),
        }
        written
    }
}

/// A test on an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// It is one of these.
    OneOf(Vec<Value>),
    /// It is none of these.
    NoneOf(Vec<Value>),
    /// At least one of these bits is set.
    AnyBitOf(Vec<Value>),
    /// None of these bits is set.
    NoBitOf(Vec<Value>),
}

/// A number, or the kernel's name for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// The number itself.
    Number(u32),
    /// A name of [`NAMED_VALUES`].
    Name(String),
}

/// The names that rules may use for argument values.
pub const NAMED_VALUES: [(&str, u32); 16] = [
    ("AF_UNIX", 1),
    ("AF_INET", 2),
    ("AF_INET6", 10),
    ("AF_NETLINK", 16),
    ("NETLINK_ROUTE", 0),
    ("NETLINK_KOBJECT_UEVENT", 15),
    ("TIOCSTI", 0x5412),
    ("TIOCLINUX", 0x541c),
    ("MFD_NOEXEC_SEAL", 0x8),
    ("MFD_EXEC", 0x10),
    ("CLONE_NEWNS", 0x0002_0000),
    ("CLONE_NEWCGROUP", 0x0200_0000),
    ("CLONE_NEWUTS", 0x0400_0000),
    ("CLONE_NEWIPC", 0x0800_0000),
    ("CLONE_NEWUSER", 0x1000_0000),
    ("CLONE_NEWNET", 0x4000_0000),
];

impl Value {
    /// The number, if the name is known.
    pub fn number(&self) -> Option<u32> {
        match self {
            Value::Number(number) => Some(*number),
            Value::Name(name) => {
                NAMED_VALUES.iter().find(|(known, _)| known == name).map(|(_, number)| *number)
            }
        }
    }
}

impl Test {
    /// The values to compare with.
    pub fn values(&self) -> &[Value] {
        match self {
            Test::OneOf(v) | Test::NoneOf(v) | Test::AnyBitOf(v) | Test::NoBitOf(v) => v,
        }
    }
}

/// The rules of `syscalls.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    refuse: Vec<SyscallRule>,
}

fn default_refusals() -> Vec<SyscallRule> {
    let file: RuleFile = toml::from_str(include_str!("syscalls.toml"))
        .expect("the built-in system call rules are parsed by a test");
    file.refuse
}

/// What Chromium needs, with room for a browser that is started again while the kernel still releases the
/// namespaces of the last one. Measured with a hundred pages: one user and one network namespace, one pid
/// namespace for each renderer, and a few of each kind for a moment at the start.
fn default_nested_namespaces() -> BTreeMap<NestedNamespace, u32> {
    [(NestedNamespace::User, 32), (NestedNamespace::Pid, 512), (NestedNamespace::Network, 16)].into()
}

impl Default for SyscallPolicy {
    fn default() -> Self {
        SyscallPolicy { nested_namespaces: default_nested_namespaces(), refuse: default_refusals() }
    }
}

impl SyscallPolicy {
    /// All rules: the list, and the rules that follow from `nested_namespaces`.
    pub fn rules(&self) -> Vec<SyscallRule> {
        let mut rules = self.refuse.clone();
        rules.extend(self.namespace_rules());
        rules
    }

    /// How many nested namespaces of this kind may exist at the same time.
    pub fn most(&self, kind: NestedNamespace) -> u32 {
        self.nested_namespaces.get(&kind).copied().unwrap_or(0)
    }

    fn namespace_rules(&self) -> Vec<SyscallRule> {
        let refused = |call: &str| -> Vec<Value> {
            NestedNamespace::ALL
                .into_iter()
                .filter(|kind| self.most(*kind) == 0)
                // The lowest byte of clone's flags is the exit signal, so clone has no time flag.
                .filter(|kind| call != "clone" || *kind != NestedNamespace::Time)
                .map(|kind| Value::Number(kind.flag()))
                .collect()
        };
        ["clone", "unshare"]
            .into_iter()
            .map(|call| (call, refused(call)))
            .filter(|(_, flags)| !flags.is_empty())
            .map(|(call, flags)| SyscallRule {
                calls: vec![call.to_owned()],
                when: vec![Condition { arg: 0, test: Test::AnyBitOf(flags) }],
                answer: SyscallErrno::Eperm,
                reason: "a new namespace gives capabilities over kernel code that the program does \
                         not need; the policy does not allow this kind"
                    .to_owned(),
            })
            .collect()
    }

    /// Checks everything except the names of system calls, which depend on the architecture.
    pub fn validate(&self) -> Result<(), PolicyError> {
        self.refuse.iter().try_for_each(validate_rule)
    }
}

fn validate_rule(rule: &SyscallRule) -> Result<(), PolicyError> {
    let bad = |problem: &str| {
        Err(PolicyError::Syscall {
            rule: rule.calls.first().cloned().unwrap_or_default(),
            problem: problem.to_owned(),
        })
    };
    if rule.calls.is_empty() {
        return bad("names no system call");
    }
    if rule.reason.trim().is_empty() {
        return bad("gives no reason");
    }
    for condition in &rule.when {
        if condition.arg > 5 {
            return bad("arguments are numbered 0 to 5");
        }
        if condition.test.values().is_empty() {
            return bad("a condition has no values");
        }
        if let Some(value) = condition.test.values().iter().find(|v| v.number().is_none()) {
            return bad(&format!("unknown value {value}"));
        }
    }
    Ok(())
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Number(number) => write!(f, "{number:#x}"),
            Value::Name(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self.test {
            Test::OneOf(_) => "is one of",
            Test::NoneOf(_) => "is none of",
            Test::AnyBitOf(_) => "has a bit of",
            Test::NoBitOf(_) => "has no bit of",
        };
        let values: Vec<String> = self.test.values().iter().map(Value::to_string).collect();
        write!(f, "argument {} {how} {}", self.arg, values.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_rules_are_valid_and_have_reasons() {
        let policy = SyscallPolicy::default();
        policy.validate().expect("valid");
        assert!(policy.refuse.len() >= 15);
        assert!(policy.refuse.iter().all(|r| r.reason.len() > 10));
    }

    #[test]
    fn only_the_named_namespaces_are_allowed() {
        let rules = SyscallPolicy::default().namespace_rules();
        let flags = |call: &str| -> u32 {
            rules
                .iter()
                .filter(|r| r.calls[0] == call)
                .flat_map(|r| r.when[0].test.values())
                .filter_map(Value::number)
                .fold(0, |a, b| a | b)
        };
        assert_eq!(flags("clone"), 0x0e02_0000);
        assert_eq!(flags("unshare"), 0x0e02_0080);
    }

    #[test]
    fn a_kind_with_the_number_zero_is_refused() {
        let mut policy = SyscallPolicy::default();
        let before = policy.namespace_rules();
        policy.nested_namespaces.insert(NestedNamespace::Mount, 0);
        assert_eq!(policy.namespace_rules(), before);
        policy.nested_namespaces.insert(NestedNamespace::Mount, 1);
        assert_ne!(policy.namespace_rules(), before);
    }

    #[test]
    fn a_rule_without_reason_or_with_an_unknown_value_is_refused() {
        let mut policy = SyscallPolicy::default();
        policy.refuse[0].reason = " ".into();
        assert!(policy.validate().is_err());
        let text =
            r#"refuse = [{ calls = ["ioctl"], reason = "x", when = [{ arg = 1, one_of = ["NOPE"] }] }]"#;
        let policy: SyscallPolicy = toml::from_str(text).expect("parses");
        assert!(policy.validate().is_err());
    }
}
