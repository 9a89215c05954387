//! Classifies the error messages of FreeBSD's tools. Their texts are matched nowhere else.

use crate::host::command::Outcome;
use crate::host::{HostError, HostErrorKind};

/// What an error message means, as far as the driver decides on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Complaint {
    /// The jail, interface, mount or rule is not there.
    Absent,
    /// Something of that name is there already.
    Exists,
    /// In use.
    Busy,
    /// The jail is stopped and the kernel still holds it.
    Dying,
    /// RACCT is disabled or not in the kernel.
    RacctOff,
    /// A command of the jail took longer than `exec.timeout`.
    TimedOut,
    /// Not root.
    Permission,
    /// Anything else.
    Unknown,
}

/// Classify a tool's standard error. Unknown texts are [`Complaint::Unknown`], never guessed.
pub(super) fn classify(stderr: &str) -> Complaint {
    let mut found = Complaint::Unknown;
    for line in stderr.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let this = one(line);
        if this == Complaint::Unknown {
            continue;
        }
        // Any other message outweighs "absent".
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
            // The interface is already a member of this or another bridge.
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
    if line.starts_with("Jail not found ") {
        return Complaint::Absent;
    }
    Complaint::Unknown
}

/// The error for a command that failed, with the command and its message as the source.
pub(super) fn command_failed(object: impl Into<String>, outcome: &Outcome, hint: &str) -> HostError {
    let kind = match classify(&outcome.stderr) {
        Complaint::Busy | Complaint::Dying => HostErrorKind::Busy,
        Complaint::RacctOff | Complaint::Permission => HostErrorKind::NotReady,
        Complaint::TimedOut => HostErrorKind::Timeout,
        _ => HostErrorKind::Failed,
    };
    HostError::new(kind, object, "the command failed", hint).caused_by(outcome.failed())
}

/// A tool's output has an unexpected form, so it is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{line:?} instead of {expected}")]
pub(super) struct Unreadable {
    /// The tool.
    pub(super) tool: &'static str,
    /// The line, or as much of it as fits.
    pub(super) line: String,
    /// The expected form.
    pub(super) expected: &'static str,
}

/// The error for an unexpected line.
pub(super) fn unreadable<T>(tool: &'static str, line: &str, expected: &'static str) -> Result<T, Unreadable> {
    Err(Unreadable { tool, line: line.chars().take(200).collect(), expected })
}

impl From<Unreadable> for HostError {
    fn from(error: Unreadable) -> HostError {
        let hint = "this version of the tool has another output format: report its output";
        HostError::new(HostErrorKind::Failed, error.tool, "unexpected output", hint).caused_by(error)
    }
}

/// The output, if its last line is complete: a truncated line could mean anything.
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
