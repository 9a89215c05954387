//! Tests one capability of the machine by trying it as an ordinary user in a short-lived process.
//! The exit status is 0 on success, else the errno.

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use std::process::ExitCode;

/// `words` are the name of the check and, for root, the uid to run it as.
pub fn run(words: &[&str]) -> ExitCode {
    let (question, uid) = match words {
        [question] => (*question, None),
        [question, uid] => (*question, uid.parse::<u32>().ok()),
        _ => return ExitCode::from(255),
    };
    let answer = uid.map_or(Ok(()), become_user).and_then(|()| match question {
        "start" => Ok(()),
        "user-namespace" => user_namespace(),
        "capabilities" => user_namespace().and_then(|()| unshare(CloneFlags::CLONE_NEWNS)),
        _ => Err(nix::Error::ENOSYS),
    });
    match answer {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => ExitCode::from(u8::try_from(error as i32).unwrap_or(255)),
    }
}

fn become_user(user: u32) -> nix::Result<()> {
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
    setgroups(&[])?;
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)
}

fn user_namespace() -> nix::Result<()> {
    unshare(CloneFlags::CLONE_NEWUSER)
}
