//! Verifies from inside that bubblewrap set up what was requested. Its exit status and documented
//! flags are not trusted.

use super::Failure;
use crate::layer::Layer;
use crate::protocol::{ExpectedMount, NamespaceCheck, Verify};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Checks everything in `orders` and the properties that every sandbox must have.
pub fn sandbox(orders: &Verify) -> Result<(), Failure> {
    let status = process_status()?;
    no_new_privileges(&status)?;
    identity(orders)?;
    for check in &orders.namespaces {
        namespace(check)?;
    }
    if orders.own_process_ids {
        process_ids()?;
    }
    if orders.own_session {
        no_terminal()?;
    }
    let mounts = read_mounts()?;
    if orders.read_only_root && !mounts.iter().any(|m| m.path == Path::new("/") && m.read_only) {
        return Err(Failure::of(Layer::ReadOnlyRoot, "/ is writable"));
    }
    expected_mounts(&orders.mounts, &mounts)
}

/// `/proc/self/status` as a table.
pub fn process_status() -> Result<BTreeMap<String, String>, Failure> {
    let text = std::fs::read_to_string("/proc/self/status")
        .map_err(|e| Failure::of(Layer::Bubblewrap, format!("/proc is not usable: {e}")))?;
    Ok(text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(key, value)| (key.to_owned(), value.trim().to_owned()))
        .collect())
}

fn no_new_privileges(status: &BTreeMap<String, String>) -> Result<(), Failure> {
    if status.get("NoNewPrivs").map(String::as_str) == Some("1") {
        return Ok(());
    }
    Err(Failure::of(Layer::Bubblewrap, "no_new_privs is not set"))
}

fn identity(orders: &Verify) -> Result<(), Failure> {
    let (uid, gid) = (nix::unistd::getresuid(), nix::unistd::getresgid());
    let right = uid.is_ok_and(|u| [u.real, u.effective, u.saved].iter().all(|id| id.as_raw() == orders.uid))
        && gid.is_ok_and(|g| [g.real, g.effective, g.saved].iter().all(|id| id.as_raw() == orders.gid));
    if right {
        return Ok(());
    }
    Err(Failure::of(Layer::Bubblewrap, format!("uid or gid is not {}:{}", orders.uid, orders.gid)))
}

fn namespace(check: &NamespaceCheck) -> Result<(), Failure> {
    let path = format!("/proc/self/ns/{}", check.kind);
    let inode = std::fs::metadata(&path).map_err(|e| Failure::of(check.layer, format!("{path}: {e}")))?.ino();
    match (check.same, inode == check.inode) {
        (true, true) | (false, false) => Ok(()),
        (true, false) => {
            Err(Failure::of(check.layer, format!("not in the prepared {} namespace", check.kind)))
        }
        (false, true) => {
            Err(Failure::of(check.layer, format!("still in the launcher's {} namespace", check.kind)))
        }
    }
}

/// Bubblewrap's reaper must be process 1 and this process its first child. Then the kernel kills
/// everything in the pid namespace when bubblewrap ends.
fn process_ids() -> Result<(), Failure> {
    if nix::unistd::getppid().as_raw() == 1 && std::process::id() == 2 {
        return Ok(());
    }
    Err(Failure::of(Layer::PidNamespace, "not the first child of process 1"))
}

fn no_terminal() -> Result<(), Failure> {
    match controlling_terminal() {
        Some(0) => Ok(()),
        Some(_) => {
            Err(Failure::of(Layer::Session, "the launcher's terminal is still the controlling terminal"))
        }
        None => Err(Failure::of(Layer::Session, "/proc/self/stat cannot be read")),
    }
}

/// The device number of the controlling terminal: 0 is none. There is no `/dev/tty` inside, so the process's own state is
/// read.
pub fn controlling_terminal() -> Option<i32> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // "pid (name) state ppid pgrp session tty …": the name may contain ')', so split at the last one.
    stat.rsplit_once(')')?.1.split_whitespace().nth(4)?.parse().ok()
}

/// One line of `/proc/self/mountinfo`, as far as it matters here.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    path: PathBuf,
    read_only: bool,
}

fn read_mounts() -> Result<Vec<Mount>, Failure> {
    let text = std::fs::read_to_string("/proc/self/mountinfo")
        .map_err(|e| Failure::of(Layer::Files, format!("/proc/self/mountinfo: {e}")))?;
    text.lines()
        .map(|line| {
            parse_mount(line).ok_or_else(|| Failure::of(Layer::Files, format!("cannot read mount {line:?}")))
        })
        .collect()
}

fn parse_mount(line: &str) -> Option<Mount> {
    let mut fields = line.split(' ');
    let path = unescape(fields.nth(4)?);
    let read_only = fields.next()?.split(',').any(|option| option == "ro");
    Some(Mount { path, read_only })
}

/// The kernel writes space, tab, newline and backslash as three octal digits.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let octal = (first == b'\\')
            .then(|| tail.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    PathBuf::from(<std::ffi::OsString as std::os::unix::ffi::OsStringExt>::from_vec(bytes))
}

/// The mounts that bubblewrap itself makes below `/proc` (read-only covers).
const BUBBLEWRAP_MOUNTS: [&str; 5] =
    ["/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs"];

/// Checks that every expected mount exists and is at least as strict, and that nothing else is mounted.
fn expected_mounts(expected: &[ExpectedMount], mounts: &[Mount]) -> Result<(), Failure> {
    let failed = |message: String| Err(Failure::of(Layer::Files, message));
    for wanted in expected {
        // The last mount on a path shadows the earlier ones.
        match mounts.iter().rev().find(|m| m.path == wanted.path) {
            None => return failed(format!("{} is not mounted", wanted.path.display())),
            Some(m) if wanted.read_only && !m.read_only => {
                return failed(format!("{} is writable", wanted.path.display()));
            }
            Some(_) => {}
        }
    }
    for (index, mount) in mounts.iter().enumerate() {
        // A shadowed mount is not visible.
        if mounts[index + 1..].iter().any(|later| later.path == mount.path) {
            continue;
        }
        let own = BUBBLEWRAP_MOUNTS.iter().any(|path| mount.path == Path::new(path));
        if own || expected.iter().any(|wanted| wanted.path == mount.path) {
            continue;
        }
        let above = expected
            .iter()
            .filter(|wanted| wanted.mounts_below && mount.path.starts_with(&wanted.path))
            .max_by_key(|wanted| wanted.path.components().count());
        match above {
            Some(wanted) if !wanted.read_only || mount.read_only => {}
            Some(_) => return failed(format!("{} is writable", mount.path.display())),
            None => return failed(format!("unexpected mount {}", mount.path.display())),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expect(path: &str, read_only: bool, mounts_below: bool) -> ExpectedMount {
        ExpectedMount { path: path.into(), read_only, mounts_below }
    }

    fn mounts(lines: &[&str]) -> Vec<Mount> {
        lines.iter().map(|line| parse_mount(line).expect("parses")).collect()
    }

    const ROOT: &str = "65 42 0:40 /newroot / ro,nosuid,nodev,relatime - tmpfs tmpfs rw";
    const USR: &str = "77 65 254:0 /usr /usr ro,nosuid,nodev,relatime - ext4 /dev/vda rw,discard";
    const SYS: &str = "70 69 0:6 /sys /proc/sys ro,nosuid,relatime - proc proc rw";
    const PTS: &str = "70 69 0:6 / /dev/pts rw,nosuid,relatime - devpts devpts rw";

    #[test]
    fn exactly_the_planned_mounts_are_accepted() {
        let expected = [expect("/", true, false), expect("/usr", true, true)];
        assert!(expected_mounts(&expected, &mounts(&[ROOT, USR, SYS])).is_ok());
    }

    #[test]
    fn missing_unplanned_and_writable_mounts_are_refused() {
        let expected = [expect("/", true, false), expect("/usr", true, true)];
        assert!(expected_mounts(&expected, &mounts(&[ROOT])).is_err());
        let foreign = "80 65 254:0 /x /x ro - ext4 /dev/vda rw";
        assert!(expected_mounts(&expected, &mounts(&[ROOT, USR, foreign])).is_err());
        assert!(expected_mounts(&expected, &mounts(&[ROOT, USR, PTS])).is_err());
        let writable = "77 65 254:0 /usr /usr rw,nosuid - ext4 /dev/vda rw";
        assert!(expected_mounts(&expected, &mounts(&[ROOT, writable])).is_err());
        let below = "81 77 254:0 / /usr/local rw - ext4 /dev/vdb rw";
        assert!(expected_mounts(&expected, &mounts(&[ROOT, USR, below])).is_err());
    }

    #[test]
    fn a_shadowed_mount_is_ignored() {
        let expected = [expect("/", true, false), expect("/usr", true, true)];
        let covered = "81 77 254:0 / /usr/local rw - ext4 /dev/vdb rw";
        let cover = "82 81 254:0 / /usr/local ro - ext4 /dev/vdc rw";
        assert!(expected_mounts(&expected, &mounts(&[ROOT, USR, covered, cover])).is_ok());
        assert!(expected_mounts(&expected, &mounts(&[ROOT, USR, cover, covered])).is_err());
    }

    #[test]
    fn escaped_paths_are_read() {
        let line = r"77 65 254:0 / /a\040b\134c ro - ext4 x rw";
        assert_eq!(parse_mount(line).expect("parses").path, Path::new(r"/a b\c"));
    }
}
