//! Runs `nft`, once per load: it translates the text into the kernel's expressions.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Where distributions install it. PATH is not used.
const PATHS: [&str; 2] = ["/usr/sbin/nft", "/sbin/nft"];
/// A pool of 900 slots loads in well under a second, also on a busy machine.
const DEADLINE: Duration = Duration::from_secs(20);
/// Enough for every message that helps.
const LONGEST_OUTPUT: usize = 16 * 1024;

/// Why a ruleset was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// The program is not installed.
    #[error("nft is not installed (looked for /usr/sbin/nft and /sbin/nft): install the package nftables")]
    Missing,
    /// It could not be started or waited for.
    #[error("{program} could not be run: {source}")]
    Run {
        /// The program.
        program: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// It took too long and was killed.
    #[error("{program} did not finish in {} s and was killed", DEADLINE.as_secs())]
    Deadline {
        /// The program.
        program: &'static str,
    },
    /// It refused the ruleset.
    #[error("{program} refused the ruleset ({status}): {output}")]
    Refused {
        /// The program.
        program: &'static str,
        /// Its exit status.
        status: std::process::ExitStatus,
        /// Its output.
        output: String,
    },
}

/// Loads a ruleset as one transaction into the calling thread's network namespace.
pub(super) fn load(ruleset: &str) -> Result<(), NftError> {
    let program = PATHS.into_iter().find(|path| Path::new(path).exists()).ok_or(NftError::Missing)?;
    run(program, ruleset).map_err(|source| NftError::Run { program, source })?
}

fn run(program: &'static str, ruleset: &str) -> io::Result<Result<(), NftError>> {
    // A file in memory instead of a pipe: it needs no writer while the program runs.
    let mut input = File::from(memfd_create(c"ruleset", MFdFlags::MFD_CLOEXEC)?);
    input.write_all(ruleset.as_bytes())?;
    input.rewind()?;
    let (mut output, writer) = io::pipe()?;
    let mut child = Command::new(program)
        .args(["-f", "-"])
        .env_clear()
        .env("LC_ALL", "C")
        .current_dir("/")
        .stdin(input)
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .process_group(0)
        .spawn()?;
    // The Command was a temporary: its ends of the pipe are closed, so the end of the output is the end of the child's.
    let deadline = Instant::now() + DEADLINE;
    let said = read_until(&mut output, deadline);
    let Ok(Some(said)) = said else {
        end(&mut child);
        return said.map(|_| Err(NftError::Deadline { program }));
    };
    // It has closed its output and is about to exit.
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            let output = String::from_utf8_lossy(&said).trim().to_owned();
            return Ok(if status.success() {
                Ok(())
            } else {
                Err(NftError::Refused { program, status, output })
            });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    end(&mut child);
    Ok(Err(NftError::Deadline { program }))
}

fn end(child: &mut Child) {
    if let Ok(pid) = i32::try_from(child.id()) {
        // It may have exited. Its process id is not reused before `wait`.
        let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
    }
    let _ = child.wait();
}

/// The output up to its end, cut at [`LONGEST_OUTPUT`]; `None` if the deadline passed first.
fn read_until(source: &mut io::PipeReader, deadline: Instant) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut waiting = [PollFd::new(source.as_fd(), PollFlags::POLLIN)];
        match poll(&mut waiting, timeout) {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let mut part = [0; 4096];
        let count = source.read(&mut part)?;
        if count == 0 {
            return Ok(Some(bytes));
        }
        let room = LONGEST_OUTPUT.saturating_sub(bytes.len());
        bytes.extend(&part[..count.min(room)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_carries_what_the_program_said() {
        let loaded = super::super::in_new_network(|| load("this is not a ruleset\n")).expect("root");
        let error = loaded.expect_err("nonsense is refused");
        let NftError::Refused { status, output, .. } = &error else { panic!("{error}") };
        assert_eq!(status.code(), Some(1));
        assert!(output.contains("syntax error"), "{output}");
    }
}
