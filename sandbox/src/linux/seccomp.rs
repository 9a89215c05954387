//! Compiles the system call policy to BPF with the `seccompiler` crate.

use crate::syscalls::{Condition, SyscallErrno, SyscallPolicy, SyscallRule, Test, Value};
use crate::{Error, PolicyError};
use sandbox_inside::protocol::Instruction;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};
use std::collections::BTreeMap;

/// The filters for `policy`, one per errno, in the order of installation.
pub(crate) fn compile(policy: &SyscallPolicy) -> Result<Vec<Vec<Instruction>>, Error> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|e| Error::Layer {
        layer: crate::Layer::Seccomp,
        reason: format!("{}: {e}", std::env::consts::ARCH),
        fix: None,
    })?;
    let mut by_errno: BTreeMap<SyscallErrno, BTreeMap<i64, Vec<SeccompRule>>> = BTreeMap::new();
    for rule in policy.rules() {
        let numbers = by_errno.entry(rule.answer).or_default();
        for call in &rule.calls {
            let Some(number) = number(&rule, call)? else {
                continue;
            };
            let alternatives = alternatives(&rule)?;
            let known = numbers.get(&number);
            // For seccompiler an empty list means "always", so it replaces any condition.
            if alternatives.is_empty() || known.is_some_and(Vec::is_empty) {
                numbers.insert(number, Vec::new());
            } else {
                numbers.entry(number).or_default().extend(alternatives);
            }
        }
    }
    by_errno
        .into_iter()
        .filter(|(_, rules)| !rules.is_empty())
        .map(|(answer, rules)| filter(answer, rules, arch))
        .collect()
}

fn filter(
    answer: SyscallErrno,
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    arch: TargetArch,
) -> Result<Vec<Instruction>, Error> {
    let errno = match answer {
        SyscallErrno::Eperm => libc::EPERM,
        SyscallErrno::Enosys => libc::ENOSYS,
    };
    let errno = u32::try_from(errno).expect("error numbers are positive");
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(errno), arch)
        .map_err(|e| wrong("filter", &e.to_string()))?;
    let program: BpfProgram =
        filter.try_into().map_err(|e: seccompiler::BackendError| wrong("filter", &e.to_string()))?;
    let mut packed = refuse_x32();
    packed.extend(program.iter().map(|i| Instruction(i.code, i.jt, i.jf, i.k)));
    Ok(packed)
}

/// x86-64 has a second table of system calls (x32), selected by one bit of the number. seccompiler
/// refuses foreign architectures but not x32, so setting that bit would bypass every rule. BPF jumps
/// are relative, so these instructions can be prepended.
fn refuse_x32() -> Vec<Instruction> {
    const LOAD_WORD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    const JUMP_IF_AT_LEAST: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    const NUMBER_OFFSET: u32 = 0;
    const X32_BIT: u32 = 0x4000_0000;
    const KILL_PROCESS: u32 = 0x8000_0000;
    if cfg!(target_arch = "x86_64") {
        vec![
            Instruction(LOAD_WORD, 0, 0, NUMBER_OFFSET),
            Instruction(JUMP_IF_AT_LEAST, 0, 1, X32_BIT),
            Instruction(RETURN, 0, 0, KILL_PROCESS),
        ]
    } else {
        Vec::new()
    }
}

/// The conditions of a rule in disjunctive normal form; an empty list means "always".
fn alternatives(rule: &SyscallRule) -> Result<Vec<SeccompRule>, Error> {
    let mut ways: Vec<Vec<SeccompCondition>> = vec![Vec::new()];
    for condition in &rule.when {
        let choices = choices(condition).map_err(|e| wrong(&rule.calls[0], &e))?;
        ways = ways
            .iter()
            .flat_map(|way| choices.iter().map(|choice| way.iter().chain(choice).cloned().collect()))
            .collect();
    }
    ways.into_iter()
        .filter(|way| !way.is_empty())
        .map(|way| SeccompRule::new(way).map_err(|e| wrong(&rule.calls[0], &e.to_string())))
        .collect()
}

/// A condition as a disjunction of conjunctions.
fn choices(condition: &Condition) -> Result<Vec<Vec<SeccompCondition>>, String> {
    let compare = |op: SeccompCmpOp, value: u64| {
        SeccompCondition::new(condition.arg, SeccompCmpArgLen::Dword, op, value).map_err(|e| e.to_string())
    };
    let numbers: Vec<u64> = condition.test.values().iter().filter_map(Value::number).map(u64::from).collect();
    match condition.test {
        Test::OneOf(_) => numbers.iter().map(|n| Ok(vec![compare(SeccompCmpOp::Eq, *n)?])).collect(),
        Test::NoneOf(_) => {
            Ok(vec![numbers.iter().map(|n| compare(SeccompCmpOp::Ne, *n)).collect::<Result<_, _>>()?])
        }
        Test::AnyBitOf(_) => {
            numbers.iter().map(|n| Ok(vec![compare(SeccompCmpOp::MaskedEq(*n), *n)?])).collect()
        }
        Test::NoBitOf(_) => {
            let mask = numbers.iter().fold(0, |all, n| all | n);
            Ok(vec![vec![compare(SeccompCmpOp::MaskedEq(mask), 0)?]])
        }
    }
}

fn wrong(rule: &str, problem: &str) -> Error {
    Error::Policy(PolicyError::Syscall { rule: rule.to_owned(), problem: problem.to_owned() })
}

/// The number of a call: `None` if only other architectures have it, an error if it is unknown.
fn number(rule: &SyscallRule, call: &str) -> Result<Option<i64>, Error> {
    if let Some((_, number)) = NUMBERS.iter().find(|(name, _)| *name == call) {
        return Ok(Some(*number));
    }
    if OTHER_ARCHITECTURES.contains(&call) {
        return Ok(None);
    }
    Err(wrong(&rule.calls[0], &format!("unknown system call {call:?}")))
}

/// Known calls that a supported architecture lacks.
const OTHER_ARCHITECTURES: [&str; 19] = [
    "inotify_init",
    "vm86",
    "vm86old",
    "iopl",
    "ioperm",
    "modify_ldt",
    "uselib",
    "ustat",
    "sysfs",
    "_sysctl",
    "create_module",
    "get_kernel_syms",
    "query_module",
    "vserver",
    "afs_syscall",
    "security",
    "tuxcall",
    "getpmsg",
    "putpmsg",
];

/// Names and numbers of the calls that rules may name, on this architecture.
const NUMBERS: &[(&str, i64)] = &[
    ("add_key", libc::SYS_add_key),
    ("request_key", libc::SYS_request_key),
    ("keyctl", libc::SYS_keyctl),
    ("shmget", libc::SYS_shmget),
    ("semget", libc::SYS_semget),
    ("msgget", libc::SYS_msgget),
    ("mq_open", libc::SYS_mq_open),
    ("io_uring_setup", libc::SYS_io_uring_setup),
    ("io_uring_enter", libc::SYS_io_uring_enter),
    ("io_uring_register", libc::SYS_io_uring_register),
    ("userfaultfd", libc::SYS_userfaultfd),
    ("bpf", libc::SYS_bpf),
    ("perf_event_open", libc::SYS_perf_event_open),
    ("ptrace", libc::SYS_ptrace),
    ("process_vm_readv", libc::SYS_process_vm_readv),
    ("process_vm_writev", libc::SYS_process_vm_writev),
    ("process_madvise", libc::SYS_process_madvise),
    ("kcmp", libc::SYS_kcmp),
    ("pidfd_getfd", libc::SYS_pidfd_getfd),
    ("mount", libc::SYS_mount),
    ("umount2", libc::SYS_umount2),
    ("pivot_root", libc::SYS_pivot_root),
    ("move_mount", libc::SYS_move_mount),
    ("open_tree", libc::SYS_open_tree),
    ("fsopen", libc::SYS_fsopen),
    ("fsconfig", libc::SYS_fsconfig),
    ("fsmount", libc::SYS_fsmount),
    ("fspick", libc::SYS_fspick),
    ("mount_setattr", libc::SYS_mount_setattr),
    ("setns", libc::SYS_setns),
    ("open_by_handle_at", libc::SYS_open_by_handle_at),
    ("name_to_handle_at", libc::SYS_name_to_handle_at),
    ("fanotify_init", libc::SYS_fanotify_init),
    ("inotify_init1", libc::SYS_inotify_init1),
    ("lookup_dcookie", libc::SYS_lookup_dcookie),
    ("init_module", libc::SYS_init_module),
    ("finit_module", libc::SYS_finit_module),
    ("delete_module", libc::SYS_delete_module),
    ("kexec_load", libc::SYS_kexec_load),
    ("kexec_file_load", libc::SYS_kexec_file_load),
    ("reboot", libc::SYS_reboot),
    ("swapon", libc::SYS_swapon),
    ("swapoff", libc::SYS_swapoff),
    ("acct", libc::SYS_acct),
    ("quotactl", libc::SYS_quotactl),
    ("quotactl_fd", libc::SYS_quotactl_fd),
    ("syslog", libc::SYS_syslog),
    ("nfsservctl", libc::SYS_nfsservctl),
    ("sethostname", libc::SYS_sethostname),
    ("setdomainname", libc::SYS_setdomainname),
    ("settimeofday", libc::SYS_settimeofday),
    ("clock_settime", libc::SYS_clock_settime),
    ("clock_adjtime", libc::SYS_clock_adjtime),
    ("adjtimex", libc::SYS_adjtimex),
    ("move_pages", libc::SYS_move_pages),
    ("migrate_pages", libc::SYS_migrate_pages),
    ("remap_file_pages", libc::SYS_remap_file_pages),
    ("personality", libc::SYS_personality),
    ("clone", libc::SYS_clone),
    ("clone3", libc::SYS_clone3),
    ("unshare", libc::SYS_unshare),
    ("chroot", libc::SYS_chroot),
    ("socket", libc::SYS_socket),
    ("socketpair", libc::SYS_socketpair),
    ("ioctl", libc::SYS_ioctl),
    ("memfd_create", libc::SYS_memfd_create),
    ("execveat", libc::SYS_execveat),
    ("prctl", libc::SYS_prctl),
    ("seccomp", libc::SYS_seccomp),
    ("landlock_create_ruleset", libc::SYS_landlock_create_ruleset),
    ("landlock_add_rule", libc::SYS_landlock_add_rule),
    ("landlock_restrict_self", libc::SYS_landlock_restrict_self),
    // Not in libc's table yet; the number is the same on every architecture.
    ("open_tree_attr", 467),
    #[cfg(target_arch = "x86_64")]
    ("inotify_init", libc::SYS_inotify_init),
    #[cfg(target_arch = "x86_64")]
    ("iopl", libc::SYS_iopl),
    #[cfg(target_arch = "x86_64")]
    ("ioperm", libc::SYS_ioperm),
    #[cfg(target_arch = "x86_64")]
    ("modify_ldt", libc::SYS_modify_ldt),
    #[cfg(target_arch = "x86_64")]
    ("uselib", libc::SYS_uselib),
    #[cfg(target_arch = "x86_64")]
    ("ustat", libc::SYS_ustat),
    #[cfg(target_arch = "x86_64")]
    ("sysfs", libc::SYS_sysfs),
    #[cfg(target_arch = "x86_64")]
    ("_sysctl", libc::SYS__sysctl),
    #[cfg(target_arch = "x86_64")]
    ("create_module", 174),
    #[cfg(target_arch = "x86_64")]
    ("get_kernel_syms", 177),
    #[cfg(target_arch = "x86_64")]
    ("query_module", 178),
    #[cfg(target_arch = "x86_64")]
    ("vserver", libc::SYS_vserver),
    #[cfg(target_arch = "x86_64")]
    ("afs_syscall", libc::SYS_afs_syscall),
    #[cfg(target_arch = "x86_64")]
    ("security", libc::SYS_security),
    #[cfg(target_arch = "x86_64")]
    ("tuxcall", libc::SYS_tuxcall),
    #[cfg(target_arch = "x86_64")]
    ("getpmsg", libc::SYS_getpmsg),
    #[cfg(target_arch = "x86_64")]
    ("putpmsg", libc::SYS_putpmsg),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of the filters for a call, from a small BPF interpreter.
    fn evaluate(programs: &[Vec<Instruction>], arch: u32, number: u32, args: [u64; 6]) -> u32 {
        let mut data = vec![0u8; 64];
        data[0..4].copy_from_slice(&number.to_le_bytes());
        data[4..8].copy_from_slice(&arch.to_le_bytes());
        for (index, value) in args.iter().enumerate() {
            data[16 + index * 8..24 + index * 8].copy_from_slice(&value.to_le_bytes());
        }
        // The kernel uses the strictest result, which is the smallest as a signed number.
        programs
            .iter()
            .map(|program| run(program, &data))
            .min_by_key(|answer| (*answer & 0xffff_0000) as i32)
            .expect("there are programs")
    }

    fn run(program: &[Instruction], data: &[u8]) -> u32 {
        let (mut at, mut accumulator) = (0usize, 0u32);
        loop {
            let Instruction(code, jt, jf, k) = program[at];
            at += 1;
            let mut jump = |condition: bool| at += usize::from(if condition { jt } else { jf });
            match code {
                0x20 => {
                    let k = k as usize;
                    accumulator = u32::from_le_bytes(data[k..k + 4].try_into().expect("4"));
                }
                0x05 => at += k as usize,
                0x15 => jump(accumulator == k),
                0x25 => jump(accumulator > k),
                0x35 => jump(accumulator >= k),
                0x45 => jump(accumulator & k != 0),
                0x54 => accumulator &= k,
                0x06 => return k,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    const NATIVE: u32 = 0xc000_003e;
    const ALLOW: u32 = 0x7fff_0000;
    const KILL: u32 = 0x8000_0000;
    const EPERM: u32 = 0x0005_0001;
    const ENOSYS: u32 = 0x0005_0026;

    fn native(number: i64, args: [u64; 6]) -> u32 {
        let programs = compile(&SyscallPolicy::default()).expect("compiles");
        evaluate(&programs, NATIVE, u32::try_from(number).expect("small"), args)
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_filters_implement_the_rules() {
        assert_eq!(native(libc::SYS_read, [0; 6]), ALLOW);
        assert_eq!(native(libc::SYS_keyctl, [0; 6]), EPERM);
        assert_eq!(native(libc::SYS_clone3, [0; 6]), ENOSYS);
        assert_eq!(native(libc::SYS_socket, [1, 1, 0, 0, 0, 0]), ALLOW);
        assert_eq!(native(libc::SYS_socket, [40, 1, 0, 0, 0, 0]), EPERM);
        assert_eq!(native(libc::SYS_socket, [16, 3, 0, 0, 0, 0]), ALLOW);
        assert_eq!(native(libc::SYS_socket, [16, 3, 12, 0, 0, 0]), EPERM);
        assert_eq!(native(libc::SYS_unshare, [0x1000_0000, 0, 0, 0, 0, 0]), ALLOW);
        assert_eq!(native(libc::SYS_unshare, [0x1002_0000, 0, 0, 0, 0, 0]), EPERM);
        assert_eq!(native(libc::SYS_clone, [0x7000_0011, 0, 0, 0, 0, 0]), ALLOW);
        assert_eq!(native(libc::SYS_clone, [0x0802_0011, 0, 0, 0, 0, 0]), EPERM);
        assert_eq!(native(libc::SYS_personality, [0xffff_ffff, 0, 0, 0, 0, 0]), ALLOW);
        assert_eq!(native(libc::SYS_personality, [0x0004_0000, 0, 0, 0, 0, 0]), EPERM);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_upper_half_of_an_argument_cannot_bypass_a_rule() {
        let hidden = 0xdead_beef_0000_5412;
        assert_eq!(native(libc::SYS_ioctl, [0, hidden, 0, 0, 0, 0]), EPERM);
        assert_eq!(native(libc::SYS_ioctl, [0, 0x5413, 0, 0, 0, 0]), ALLOW);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn foreign_system_call_tables_kill_the_process() {
        let programs = compile(&SyscallPolicy::default()).expect("compiles");
        assert_eq!(evaluate(&programs, NATIVE, 0x4000_0000 | 39, [0; 6]), KILL);
        assert_eq!(evaluate(&programs, 0x4000_0003, 20, [0; 6]), KILL);
    }

    #[test]
    fn unknown_calls_are_errors_and_calls_of_other_architectures_are_ignored() {
        let mut policy = SyscallPolicy::default();
        policy.refuse[0].calls = vec!["vm86".into()];
        assert!(compile(&policy).is_ok());
        policy.refuse[0].calls = vec!["no_such_call".into()];
        assert!(compile(&policy).is_err());
    }
}
