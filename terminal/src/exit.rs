//! Exit codes. Every command line of the workspace gives them the same meaning.

/// An exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Ok = 0,
    /// Tried and failed.
    Failure = 1,
    /// The command line or the request is wrong.
    Usage = 2,
    /// What the command names does not exist.
    NotFound = 3,
    /// Not allowed.
    Denied = 4,
    /// A limit is reached or the object is busy.
    Busy = 5,
    /// No answer in time.
    Timeout = 6,
    /// The host or the service is not ready.
    NotReady = 7,
}

impl Exit {
    /// Every code, by its number.
    pub const ALL: [Exit; 8] = [
        Exit::Ok,
        Exit::Failure,
        Exit::Usage,
        Exit::NotFound,
        Exit::Denied,
        Exit::Busy,
        Exit::Timeout,
        Exit::NotReady,
    ];
}

impl From<u8> for Exit {
    fn from(code: u8) -> Exit {
        Exit::ALL.into_iter().find(|exit| *exit as u8 == code).unwrap_or(Exit::Failure)
    }
}
