//! Starts the embedded program of the stages.

use super::{doing, embedded};
use crate::Error;
use sandbox_inside::linux::channel;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// Starts the stages in the mode that `words` name, with an empty environment and nothing but a
/// socket to us as standard input. Everything else is sent over that socket, so there is no moment
/// at which a descriptor of ours is inheritable by some other child of this process.
pub(crate) fn start(words: &[&str]) -> Result<(Child, OwnedFd), Error> {
    let program = embedded::stages()?;
    let (ours, theirs) = channel::pair().map_err(doing("make a socket pair"))?;
    let child = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()))
        // What administrators see in a list of processes.
        .arg0("sandbox-stages")
        .args(words)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| embedded::not_executable(&e.to_string()))?;
    Ok((child, ours))
}
