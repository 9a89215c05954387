//! Starts the embedded program of the stages.

use super::{doing, embedded};
use crate::Error;
use sandbox_inside::linux::channel;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// Starts the stages in the mode given by `words`, with an empty environment and a socket as
/// standard input. Everything else is sent over that socket, so no descriptor of this process is
/// ever inheritable by another child.
pub(crate) fn start(words: &[&str]) -> Result<(Child, OwnedFd), Error> {
    let program = embedded::stages()?;
    let (own_end, child_end) = channel::pair().map_err(doing("make a socket pair"))?;
    let child = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()))
        // The name that process lists show.
        .arg0("sandbox-stages")
        .args(words)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(child_end))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| embedded::not_executable(&e.to_string()))?;
    Ok((child, own_end))
}
