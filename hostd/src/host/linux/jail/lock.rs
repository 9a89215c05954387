//! The lock of a jail file: the kernel's answer to which process the supervisor is and whether its service is ready.
//!
//! | locked bytes | meaning |
//! |---|---|
//! | none | no supervisor is alive |
//! | 0 | a supervisor is alive |
//! | 0 and 1 | a supervisor is alive, and its service was ready when the supervisor last checked it |
//! | the whole file | a supervisor that an earlier version of hostd started; its service must be asked |
//!
//! The supervisor checks its service at the start and when hostd asks, and ends with it. A lock ends with its process, so a
//! dead supervisor is never reported. One call gets the answer, because the kernel merges adjacent locks of one process. That
//! makes it cheap enough to inspect hundreds of clones at once.

use nix::fcntl::{FcntlArg, fcntl};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;

const ALIVE: libc::off_t = 0;
const READY: libc::off_t = 1;
/// As `l_len`: up to the end of the file, however far that is.
const WHOLE_FILE: libc::off_t = 0;

/// The supervisor that holds a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::host::linux) struct LockHolder {
    /// The supervisor's process.
    pub(in crate::host::linux) pid: u32,
    /// Whether its service is ready. `None`: it does not report that.
    pub(in crate::host::linux) is_ready: Option<bool>,
}

/// The supervisor's own lock. It must not open the jail file a second time: closing any descriptor of a file releases the
/// process's locks on it.
#[derive(Debug)]
pub(in crate::host::linux) struct SupervisorLock(File);

impl SupervisorLock {
    /// Take the lock. It is released when this process ends.
    pub(in crate::host::linux) fn take(file: File) -> io::Result<SupervisorLock> {
        set(&file, libc::F_WRLCK, ALIVE)?;
        Ok(SupervisorLock(file))
    }

    /// Report whether the service is ready.
    pub(in crate::host::linux) fn set_ready(&self, is_ready: bool) -> io::Result<()> {
        set(&self.0, if is_ready { libc::F_WRLCK } else { libc::F_UNLCK }, READY)
    }

    pub(in crate::host::linux) fn file(&self) -> &File {
        &self.0
    }
}

/// The supervisor that holds the lock of this file, if one is alive.
pub(in crate::host::linux) fn holder(file: impl AsFd) -> io::Result<Option<LockHolder>> {
    let mut found = range(libc::F_WRLCK, ALIVE, WHOLE_FILE);
    fcntl(file, FcntlArg::F_GETLK(&mut found))?;
    if i32::from(found.l_type) == libc::F_UNLCK {
        return Ok(None);
    }
    let is_ready = (found.l_len != WHOLE_FILE).then_some(found.l_start + found.l_len > READY);
    // Zero: a process outside of this process's PID namespace.
    Ok(u32::try_from(found.l_pid).ok().filter(|pid| *pid > 0).map(|pid| LockHolder { pid, is_ready }))
}

fn set(file: &File, kind: i32, byte: libc::off_t) -> io::Result<()> {
    fcntl(file, FcntlArg::F_SETLK(&range(kind, byte, 1))).map(drop).map_err(io::Error::from)
}

fn range(kind: i32, start: libc::off_t, length: libc::off_t) -> libc::flock {
    let small = |value: i32| libc::c_short::try_from(value).expect("a small constant");
    libc::flock {
        l_type: small(kind),
        l_whence: small(libc::SEEK_SET),
        l_start: start,
        l_len: length,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    /// Another process that takes and releases locks as it is told: a process never sees its own locks.
    const HOLDER: &str = r#"
        use Fcntl qw(:DEFAULT); $| = 1;
        open my $file, '+<', $ARGV[0] or die;
        while (<STDIN>) {
            my ($kind, $start, $length) = split;
            # struct flock: short type, short whence, padding, long start, long length, int pid
            fcntl $file, F_SETLK, pack 's s x4 q q l x4', ($kind eq 'lock' ? F_WRLCK : F_UNLCK), 0, $start, $length, 0
                or die "$!";
            print "done\n";
        }
    "#;

    #[test]
    fn one_call_shows_the_process_and_its_readiness() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut child = Command::new("/usr/bin/perl")
            .args(["-e", HOLDER])
            .arg(file.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut tell = |command: &str| {
            writeln!(input, "{command}").unwrap();
            let mut line = String::new();
            output.read_line(&mut line).unwrap();
            assert_eq!(line, "done\n");
            let opened = File::open(file.path()).unwrap();
            holder(&opened).unwrap().map(|holder| {
                assert_eq!(holder.pid, child.id());
                holder.is_ready
            })
        };
        assert_eq!(tell("unlock 0 0"), None);
        assert_eq!(tell("lock 0 1"), Some(Some(false)));
        assert_eq!(tell("lock 1 1"), Some(Some(true)));
        assert_eq!(tell("unlock 1 1"), Some(Some(false)));
        assert_eq!(tell("lock 0 0"), Some(None), "an earlier version's");
        drop(input);
        child.wait().unwrap();
        assert_eq!(holder(File::open(file.path()).unwrap()).unwrap(), None, "the lock ends with its process");
    }
}
