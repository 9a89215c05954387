//! From what FreeBSD's tools say to the host's errors: the only place where their words are matched.

use crate::host::command::Outcome;
use crate::host::{HostError, HostErrorKind};

/// What a complaint means, as far as a driver decides on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Complaint {
    /// The jail, interface, mount, rule or process is not there.
    Absent,
    /// Something of that name is there already.
    Exists,
    /// In use.
    Busy,
    /// A jail that the kernel still holds, stopped.
    Dying,
    /// RACCT is compiled in and off.
    RacctOff,
    /// A command of the jail took longer than `exec.timeout`.
    TimedOut,
    /// Not root.
    Permission,
    /// Anything else.
    Unknown,
}

/// Classify what a tool wrote to stderr. Unknown words are never guessed at.
pub(super) fn classify(stderr: &str) -> Complaint {
    let mut found = Complaint::Unknown;
    for line in stderr.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let this = one(line);
        if this == Complaint::Unknown {
            continue;
        }
        // Of two complaints the one that says more than "not there" counts.
        if found == Complaint::Unknown || found == Complaint::Absent {
            found = this;
        }
    }
    found
}

fn one(line: &str) -> Complaint {
    let tool = |name: &str| line.strip_prefix(name).and_then(|rest| rest.strip_prefix(": "));
    if let Some(rest) = tool("ifconfig") {
        return match rest {
            _ if rest.starts_with("interface ") && rest.ends_with(" does not exist") => Complaint::Absent,
            _ if rest.starts_with("interface ") && rest.ends_with(" already exists") => Complaint::Exists,
            _ if rest.starts_with("BRDG") && rest.ends_with(": No such file or directory") => {
                Complaint::Absent
            }
            // What is a member of this or another bridge already.
            _ if rest.starts_with("BRDGADD ")
                && (rest.ends_with(": File exists") || rest.ends_with(": Device busy")) =>
            {
                Complaint::Exists
            }
            "ioctl SIOCSIFNAME (set name): File exists" => Complaint::Exists,
            "SIOCIFCREATE2: File exists" | "SIOCIFCREATE2 (epair): File exists" => Complaint::Exists,
            _ if rest.ends_with("Operation not permitted") || rest.ends_with("permission denied") => {
                Complaint::Permission
            }
            _ => Complaint::Unknown,
        };
    }
    for name in ["jail", "jexec", "jls"] {
        let Some(rest) = tool(name) else { continue };
        return match rest {
            _ if rest.ends_with(" already exists") => Complaint::Exists,
            _ if rest.ends_with(" not found") => Complaint::Absent,
            _ if rest.ends_with(" is dying") => Complaint::Dying,
            _ if rest.ends_with(": timed out") => Complaint::TimedOut,
            _ if rest.ends_with("Operation not permitted") => Complaint::Permission,
            _ => Complaint::Unknown,
        };
    }
    if let Some(rest) = tool("rctl") {
        return match rest {
            _ if rest.starts_with("RACCT/RCTL present, but disabled") => Complaint::RacctOff,
            // A kernel without it.
            _ if rest.starts_with("RACCT/RCTL support not present in kernel") => Complaint::RacctOff,
            _ if rest.starts_with("failed to remove rule ") && rest.ends_with(": No such process") => {
                Complaint::Absent
            }
            _ if rest.ends_with(": Operation not permitted") => Complaint::Permission,
            _ => Complaint::Unknown,
        };
    }
    if let Some(rest) = tool("umount") {
        return match rest {
            _ if rest.ends_with(": not a file system root directory") => Complaint::Absent,
            _ if rest.ends_with(": statfs: No such file or directory") => Complaint::Absent,
            _ if rest.ends_with(": unknown file system") => Complaint::Absent,
            _ if rest.ends_with(": Device busy") => Complaint::Busy,
            _ if rest.ends_with(": Operation not permitted") => Complaint::Permission,
            _ => Complaint::Unknown,
        };
    }
    if let Some(rest) = tool("kill") {
        return if rest.ends_with(": No such process") { Complaint::Absent } else { Complaint::Unknown };
    }
    if line.starts_with("Jail not found ") {
        return Complaint::Absent;
    }
    Complaint::Unknown
}

/// A command failed: its object, its complaint, what to do.
pub(super) fn command_failed(object: impl Into<String>, outcome: &Outcome, hint: &str) -> HostError {
    let kind = match classify(&outcome.stderr) {
        Complaint::Busy | Complaint::Dying => HostErrorKind::Busy,
        Complaint::RacctOff | Complaint::Permission => HostErrorKind::NotReady,
        Complaint::TimedOut => HostErrorKind::Timeout,
        _ => HostErrorKind::Failed,
    };
    HostError::new(kind, object, format!("`{}`: {}", outcome.command, outcome.complaint()), hint)
}

/// What a tool wrote cannot be read: nothing is concluded from it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{tool}: cannot read {line:?}: {expected} was expected")]
pub(super) struct Unreadable {
    /// The tool.
    pub(super) tool: &'static str,
    /// The line, or as much of it as fits.
    pub(super) line: String,
    /// What should have been there.
    pub(super) expected: &'static str,
}

/// That line of that tool is not what it should be.
pub(super) fn unreadable<T>(tool: &'static str, line: &str, expected: &'static str) -> Result<T, Unreadable> {
    Err(Unreadable { tool, line: line.chars().take(200).collect(), expected })
}

impl From<Unreadable> for HostError {
    fn from(error: Unreadable) -> HostError {
        HostError::new(
            HostErrorKind::Failed,
            error.tool,
            error.to_string(),
            "this version of the tool speaks differently: report its output",
        )
    }
}

/// The output, if it is whole: what was cut off in a line may mean anything.
pub(super) fn whole<'a>(tool: &'static str, text: &'a str) -> Result<&'a str, Unreadable> {
    match text.is_empty() || text.ends_with('\n') {
        true => Ok(text),
        false => unreadable(tool, text.lines().next_back().unwrap_or_default(), "the end of the line"),
    }
}

/// Digits only: no sign, no space.
pub(super) fn digits<N: std::str::FromStr>(text: &str) -> Option<N> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}
