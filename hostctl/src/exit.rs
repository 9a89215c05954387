//! Exit codes.

/// The exit codes of `hostctl`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Ok = 0,
    /// Tried and failed.
    Failure = 1,
    /// The command line or the request is wrong.
    Usage = 2,
    /// No such clone.
    NotFound = 3,
    /// Not allowed.
    Denied = 4,
    /// A limit is reached or the object is busy.
    Busy = 5,
    /// No answer in time.
    Timeout = 6,
    /// The host or the daemon is not ready.
    NotReady = 7,
}

/// Every exit code and its meaning, for the help and the documentation.
pub const EXIT_CODES: [(Exit, &str); 8] = [
    (Exit::Ok, "done"),
    (Exit::Failure, "tried and failed"),
    (Exit::Usage, "the command line or the request is wrong"),
    (Exit::NotFound, "no such clone, or the name belongs to another clone now"),
    (Exit::Denied, "not allowed"),
    (Exit::Busy, "a limit is reached or the object is busy; try again later"),
    (Exit::Timeout, "no answer in time"),
    (Exit::NotReady, "the host is not ready, or hostd is not running"),
];

impl From<u8> for Exit {
    fn from(code: u8) -> Exit {
        EXIT_CODES.iter().map(|(exit, _)| *exit).find(|exit| *exit as u8 == code).unwrap_or(Exit::Failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_code_has_a_documented_exit_code() {
        for (index, (exit, _)) in EXIT_CODES.iter().enumerate() {
            assert_eq!(*exit as usize, index);
        }
        for code in hostd::api::ErrorCode::ALL {
            assert_eq!(Exit::from(code.exit_code()) as u8, code.exit_code(), "{code}");
        }
    }
}
