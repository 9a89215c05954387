//! System calls for which `nix` and the standard library have no safe wrapper.
//!
//! `rustix` wraps some of them (pidfd). It is not used here: every dependency enlarges the static
//! program that is copied into memory for each launch.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Takes ownership of the open descriptor `number`.
///
/// Fails if it is not open. The caller guarantees that nothing else in this process owns it. The
/// stages can do so: they are single-threaded and the protocol fixes their descriptor numbers.
pub fn own(number: RawFd) -> io::Result<OwnedFd> {
    check(
        // SAFETY: F_GETFD reads a flag of a descriptor; any number is allowed.
        unsafe { libc::fcntl(number, libc::F_GETFD) },
    )?;
    // SAFETY: the descriptor is open (checked above) and, by this function's contract, not owned.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Sets or clears close-on-exec of the descriptor `number`.
pub fn set_close_on_exec(number: RawFd, on: bool) -> io::Result<()> {
    let flags = if on { libc::FD_CLOEXEC } else { 0 };
    // SAFETY: F_SETFD changes a flag of a descriptor; a closed number gives EBADF.
    check(unsafe { libc::fcntl(number, libc::F_SETFD, flags) }).map(drop)
}

/// Makes `to` a copy of `from`, not close-on-exec. An open `to` is closed first.
///
/// The caller guarantees that no live Rust value owns `to`.
pub fn copy_to(from: RawFd, to: RawFd) -> io::Result<()> {
    // SAFETY: dup2 takes numbers; the caller guarantees that `to` has no owner.
    check(unsafe { libc::dup2(from, to) }).map(drop)
}

/// A copy of `from` at the lowest free number that is at least `least`, close-on-exec.
pub fn copy_above(from: BorrowedFd<'_>, least: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_DUPFD_CLOEXEC makes a new descriptor of an open one.
    let number = check(unsafe { libc::fcntl(from.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least) })?;
    // SAFETY: the kernel just created this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Closes all descriptors from `first` to `last`, or marks them close-on-exec.
///
/// Before closing, the caller guarantees that no live Rust value owns any of them.
pub fn close_range(first: RawFd, last: RawFd, only_mark: bool) -> io::Result<()> {
    if first > last {
        return Ok(());
    }
    let flags = if only_mark { libc::CLOSE_RANGE_CLOEXEC } else { 0 };
    // SAFETY: takes numbers; the caller guarantees that they have no owner. The raw call is used
    // because older C libraries have no wrapper.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A descriptor of the process `pid`. It never refers to another process and is readable once the
/// process has ended.
pub fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers only.
    let number = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    let number = RawFd::try_from(number).map_err(io::Error::other)?;
    // SAFETY: the kernel just created this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Sends `signal` to the process behind `pidfd`.
pub fn pidfd_send_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // SAFETY: a null `info` means "as kill(2) would"; the rest are numbers.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The Landlock ABI of the kernel; 0 when there is none.
pub fn landlock_abi() -> u8 {
    const VERSION: u32 = 1;
    // SAFETY: with this flag the kernel reads no memory and returns its ABI version.
    let version = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<libc::c_void>(), 0usize, VERSION)
    };
    u8::try_from(version).unwrap_or(0)
}

/// Fails unless the kernel has seccomp filters with `SECCOMP_RET_KILL_PROCESS`.
pub fn seccomp_available() -> io::Result<()> {
    let action: u32 = libc::SECCOMP_RET_KILL_PROCESS;
    // SAFETY: the kernel reads one u32 from the pointer.
    let result =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `prctl` with one number.
pub fn prctl(option: i32, value: libc::c_ulong) -> io::Result<i32> {
    // SAFETY: only used with options whose arguments are numbers.
    check(unsafe { libc::prctl(option, value, 0, 0, 0) })
}

/// Writes `text` to the file `name` in an open folder of settings and returns what the file then contains.
pub fn write_setting(folder: BorrowedFd<'_>, name: &str, text: &str) -> io::Result<String> {
    use nix::fcntl::{OFlag, openat};
    use std::io::{Read, Seek, Write};
    let file = openat(folder, name, OFlag::O_RDWR | OFlag::O_CLOEXEC, nix::sys::stat::Mode::empty())?;
    let mut file = std::fs::File::from(file);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    let mut seen = String::new();
    file.read_to_string(&mut seen)?;
    Ok(seen)
}

/// Sets one option of the file system that is mounted at `path`; the others stay as they are.
pub fn reconfigure_mount(path: &Path, option: &CStr, value: &str) -> io::Result<()> {
    const SET_STRING: u32 = 1;
    const RECONFIGURE: u32 = 7;
    const CLOSE_ON_EXEC: u32 = 1;
    let path = CString::new(path.as_os_str().as_bytes())?;
    let value = CString::new(value)?;
    // SAFETY: the path ends with NUL and outlives the call.
    let number = unsafe { libc::syscall(libc::SYS_fspick, libc::AT_FDCWD, path.as_ptr(), CLOSE_ON_EXEC) };
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    let number = RawFd::try_from(number).map_err(io::Error::other)?;
    // SAFETY: the kernel just created this descriptor for us.
    let context = unsafe { OwnedFd::from_raw_fd(number) };
    let none = std::ptr::null::<libc::c_char>();
    for (command, option, value) in [(SET_STRING, option.as_ptr(), value.as_ptr()), (RECONFIGURE, none, none)]
    {
        // SAFETY: the strings end with NUL and outlive the call; RECONFIGURE takes none.
        let result =
            unsafe { libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), command, option, value, 0) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Forks. Only for single-threaded programs: there the child is not limited to
/// async-signal-safe calls.
pub fn fork() -> io::Result<Option<i32>> {
    // SAFETY: the stages never start a thread.
    let pid = check(unsafe { libc::fork() })?;
    Ok((pid != 0).then_some(pid))
}

/// Replaces this process with the program at `path`. Returns only on failure.
pub fn exec(path: &CStr, arguments: &[CString], environment: &[CString]) -> io::Error {
    let arguments = pointers(arguments);
    let environment = pointers(environment);
    // SAFETY: both arrays end with null and their strings outlive the call.
    unsafe { libc::execve(path.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

/// Replaces this process with the program in the open file `number`. Returns only on failure.
pub fn exec_descriptor(number: RawFd, arguments: &[CString], environment: &[CString]) -> io::Error {
    let arguments = pointers(arguments);
    let environment = pointers(environment);
    // SAFETY: both arrays end with null and their strings outlive the call; the path is empty.
    unsafe {
        libc::execveat(
            number,
            c"".as_ptr(),
            arguments.as_ptr().cast_mut().cast(),
            environment.as_ptr().cast_mut().cast(),
            libc::AT_EMPTY_PATH,
        )
    };
    io::Error::last_os_error()
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|s| s.as_ptr()).chain(std::iter::once(std::ptr::null())).collect()
}

fn check(result: i32) -> io::Result<i32> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
