//! The unusual system calls that the probes make.
#![allow(unsafe_code)]

use crate::linux::sys;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::{AccessFlags, access};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Whether access(2) permits writing; it does not consider Landlock.
pub(super) fn may_write(path: &str) -> bool {
    access(path, AccessFlags::W_OK).is_ok()
}

pub(super) fn make_device(path: &Path) -> io::Result<()> {
    Ok(mknod(path, SFlag::S_IFCHR, Mode::S_IRWXU, makedev(1, 1))?)
}

/// The beginning of the file behind a descriptor number, if it is open and readable.
pub(super) fn read_descriptor(number: i32) -> Option<String> {
    let mut buffer = [0u8; 256];
    // SAFETY: reads into a buffer of the given size; a closed number gives an error.
    let length = unsafe { libc::pread(number, buffer.as_mut_ptr().cast(), buffer.len(), 0) };
    let length = usize::try_from(length).ok()?;
    Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

pub(super) fn find_shared_segment(key: i32) -> io::Result<libc::c_long> {
    // SAFETY: looks up an existing segment; no memory is touched.
    check(unsafe { libc::shmget(key, 0, 0) }.into())
}

pub(super) fn open_message_queue(name: &str) -> io::Result<libc::c_long> {
    let name = CString::new(name)?;
    // SAFETY: the name ends with NUL; without O_CREAT there are no further arguments.
    check(unsafe { libc::mq_open(name.as_ptr(), libc::O_RDONLY) }.into())
}

pub(super) fn trace(pid: i32) -> io::Result<libc::c_long> {
    // SAFETY: the request takes no pointers.
    check(unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0) })
}

pub(super) fn trace_me() -> io::Result<libc::c_long> {
    // SAFETY: the request takes no arguments.
    check(unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) })
}

pub(super) fn read_own_memory() -> io::Result<libc::c_long> {
    let source = [7u8; 8];
    let mut target = [0u8; 8];
    let local = libc::iovec { iov_base: target.as_mut_ptr().cast(), iov_len: target.len() };
    let remote = libc::iovec { iov_base: source.as_ptr().cast_mut().cast(), iov_len: source.len() };
    let pid = nix::unistd::getpid().as_raw();
    // SAFETY: both vectors describe arrays of this process that live through the call.
    let result = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    check(result as libc::c_long)
}

pub(super) fn take_descriptor() -> io::Result<libc::c_long> {
    let own = sys::pidfd_open(nix::unistd::getpid().as_raw())?;
    // SAFETY: takes numbers only.
    check(unsafe { libc::syscall(libc::SYS_pidfd_getfd, own.as_raw_fd(), 0, 0) })
}

pub(super) fn compare_processes() -> io::Result<libc::c_long> {
    let own = nix::unistd::getpid().as_raw();
    // SAFETY: takes numbers only; type 0 compares open files.
    check(unsafe { libc::syscall(libc::SYS_kcmp, own, own, 0, 0, 0) })
}

pub(super) fn socket(family: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers only.
    let number = unsafe { libc::socket(family, kind, protocol) };
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just created this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

pub(super) fn mount_tmpfs(path: &str) -> io::Result<()> {
    Ok(nix::mount::mount(Some("none"), path, Some("tmpfs"), nix::mount::MsFlags::empty(), None::<&str>)?)
}

pub(super) fn clone3_with_mount_namespace() -> io::Result<libc::c_long> {
    // SAFETY: all fields are numbers, for which zero is valid.
    let mut arguments: libc::clone_args = unsafe { zeroed() };
    arguments.flags = (libc::CLONE_NEWUSER | libc::CLONE_NEWNS) as u64;
    arguments.exit_signal = libc::SIGCHLD as u64;
    // SAFETY: without CLONE_VM this is a fork; the structure has the size that is given.
    let result =
        unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, size_of::<libc::clone_args>()) };
    if result == 0 {
        // SAFETY: ends the child at once, running nothing of the parent's.
        unsafe { libc::_exit(0) }
    }
    check(result)
}

pub(super) fn keyring() -> io::Result<libc::c_long> {
    const PROCESS_KEYRING: i32 = -2;
    // SAFETY: the strings end with NUL and the payload has the length that is given.
    check(unsafe {
        libc::syscall(
            libc::SYS_add_key,
            c"user".as_ptr(),
            c"probe".as_ptr(),
            c"x".as_ptr(),
            1usize,
            PROCESS_KEYRING,
        )
    })
}

pub(super) fn io_uring() -> io::Result<libc::c_long> {
    let mut parameters = [0u8; 120];
    // SAFETY: the kernel's structure is 120 bytes long, all zeroes are valid.
    check(unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) })
}

pub(super) fn userfaultfd() -> io::Result<libc::c_long> {
    const USER_MODE_ONLY: i32 = 1;
    // SAFETY: takes numbers only.
    check(unsafe { libc::syscall(libc::SYS_userfaultfd, USER_MODE_ONLY) })
}

pub(super) fn bpf() -> io::Result<libc::c_long> {
    const MAP_CREATE: i32 = 0;
    const ARRAY: u32 = 2;
    let attributes: [u32; 32] = {
        let mut words = [0; 32];
        words[..4].copy_from_slice(&[ARRAY, 4, 4, 1]);
        words
    };
    // SAFETY: the array is as long as the size that is given.
    check(unsafe { libc::syscall(libc::SYS_bpf, MAP_CREATE, attributes.as_ptr(), size_of_val(&attributes)) })
}

pub(super) fn perf() -> io::Result<libc::c_long> {
    const SOFTWARE: u32 = 1;
    const SIZE: u32 = 64;
    const EXCLUDE_KERNEL_AND_HYPERVISOR: u64 = (1 << 5) | (1 << 6);
    let mut attributes = [0u8; SIZE as usize];
    attributes[0..4].copy_from_slice(&SOFTWARE.to_ne_bytes());
    attributes[4..8].copy_from_slice(&SIZE.to_ne_bytes());
    attributes[40..48].copy_from_slice(&EXCLUDE_KERNEL_AND_HYPERVISOR.to_ne_bytes());
    // SAFETY: the structure holds its own size.
    check(unsafe { libc::syscall(libc::SYS_perf_event_open, attributes.as_ptr(), 0, -1, -1, 0) })
}

pub(super) fn personality() -> io::Result<libc::c_long> {
    const NO_RANDOM_ADDRESSES: libc::c_ulong = 0x0004_0000;
    // SAFETY: takes a number; the process ends soon after.
    check(unsafe { libc::personality(NO_RANDOM_ADDRESSES) }.into())
}

#[cfg(target_arch = "x86_64")]
pub(super) fn modify_ldt() -> Option<io::Result<libc::c_long>> {
    let mut table = [0u8; 64];
    // SAFETY: function 0 reads the table into a buffer of the given size.
    Some(check(unsafe { libc::syscall(libc::SYS_modify_ldt, 0, table.as_mut_ptr(), table.len()) }))
}

#[cfg(target_arch = "x86_64")]
pub(super) fn call_as_i386() -> Option<io::Result<libc::c_long>> {
    const GETPID: i32 = 20;
    let answer: i32;
    // SAFETY: the 32-bit call for the process id takes no arguments and touches no memory; the
    // registers that the kernel may change are named.
    unsafe {
        std::arch::asm!(
            "int 0x80",
            inlateout("eax") GETPID => answer,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    Some(if answer > 0 { Ok(answer.into()) } else { Err(io::Error::from_raw_os_error(-answer)) })
}

#[cfg(target_arch = "x86_64")]
pub(super) fn call_as_x32() -> Option<io::Result<libc::c_long>> {
    const X32_BIT: libc::c_long = 0x4000_0000;
    // SAFETY: the call for the process id takes no arguments.
    Some(check(unsafe { libc::syscall(X32_BIT | libc::SYS_getpid) }))
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn modify_ldt() -> Option<io::Result<libc::c_long>> {
    None
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn call_as_i386() -> Option<io::Result<libc::c_long>> {
    None
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn call_as_x32() -> Option<io::Result<libc::c_long>> {
    None
}

pub(super) fn open_by_handle() -> io::Result<libc::c_long> {
    const HANDLE_BYTES: u32 = 128;
    let mut handle = [0u8; 8 + HANDLE_BYTES as usize];
    handle[0..4].copy_from_slice(&HANDLE_BYTES.to_ne_bytes());
    let folder = File::open("/tmp")?;
    let mut mount = 0i32;
    // SAFETY: the handle holds the size of its buffer.
    check(unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            folder.as_raw_fd(),
            c"".as_ptr(),
            handle.as_mut_ptr(),
            &raw mut mount,
            libc::AT_EMPTY_PATH,
        )
    })?;
    // SAFETY: the kernel filled in the handle.
    check(unsafe {
        libc::syscall(libc::SYS_open_by_handle_at, folder.as_raw_fd(), handle.as_mut_ptr(), libc::O_RDONLY)
    })
}

pub(super) fn kernel_log() -> io::Result<libc::c_long> {
    const SIZE_OF_BUFFER: i32 = 10;
    // SAFETY: this action takes no buffer.
    check(unsafe { libc::klogctl(SIZE_OF_BUFFER, std::ptr::null_mut(), 0) }.into())
}

/// Calls TIOCSTI on a file that is no terminal: the kernel answers ENOTTY unless the filter refuses the call.
pub(super) fn type_into_terminal() -> io::Result<()> {
    let file = File::open("/dev/null")?;
    let letter = b'x';
    // SAFETY: the request reads one byte.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TIOCSTI, &raw const letter) };
    match check(result.into()) {
        Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => Ok(()),
        other => other.map(drop),
    }
}

/// Makes one object of each kind and removes it. One that can be made is enough.
pub(super) fn make_system_v_objects() -> io::Result<()> {
    const CREATE: i32 = libc::IPC_CREAT | 0o600;
    // SAFETY: makes a segment; no memory is touched.
    let memory = check(unsafe { libc::shmget(libc::IPC_PRIVATE, 4096, CREATE) }.into());
    // SAFETY: takes numbers only.
    let semaphores = check(unsafe { libc::semget(libc::IPC_PRIVATE, 1, CREATE) }.into());
    // SAFETY: takes numbers only.
    let queue = check(unsafe { libc::msgget(libc::IPC_PRIVATE, CREATE) }.into());
    // The ipc namespace ends with the sandbox, and these objects with it.
    memory.or(semaphores).or(queue).map(drop)
}

pub(super) fn make_message_queue(name: &str) -> io::Result<libc::c_long> {
    let name = CString::new(name)?;
    let none = std::ptr::null::<libc::mq_attr>();
    // SAFETY: the name ends with NUL; without attributes the kernel uses its defaults.
    check(unsafe { libc::mq_open(name.as_ptr(), libc::O_RDWR | libc::O_CREAT, 0o600, none) }.into())
}

/// Blocks the signal of [`queue_signal`], so that it stays queued.
pub(super) fn block_queued_signal() -> io::Result<()> {
    // SAFETY: all zeroes are a valid set of signals.
    let mut set: libc::sigset_t = unsafe { zeroed() };
    // SAFETY: the set is initialised.
    unsafe { libc::sigemptyset(&raw mut set) };
    // SAFETY: the set is initialised and the signal exists.
    unsafe { libc::sigaddset(&raw mut set, libc::SIGRTMIN()) };
    // SAFETY: the kernel reads one set and writes none.
    check(unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) }.into())
        .map(drop)
}

pub(super) fn queue_signal() -> io::Result<()> {
    let own = nix::unistd::getpid().as_raw();
    let value = libc::sigval { sival_ptr: std::ptr::null_mut() };
    // SAFETY: takes a process, a signal and a value that nobody reads.
    check(unsafe { libc::sigqueue(own, libc::SIGRTMIN(), value) }.into()).map(drop)
}

/// Makes a timer that is never started. It ends with the process.
pub(super) fn make_timer() -> io::Result<()> {
    let mut timer = 0i32;
    let none = std::ptr::null::<libc::sigevent>();
    // SAFETY: the kernel writes the timer's number; without an event it uses its default.
    check(unsafe { libc::syscall(libc::SYS_timer_create, libc::CLOCK_MONOTONIC, none, &raw mut timer) })
        .map(drop)
}

pub(super) fn lock_memory(bytes: usize) -> io::Result<()> {
    let block = vec![1u8; bytes];
    // SAFETY: the range is a block of this process.
    check(unsafe { libc::mlock(block.as_ptr().cast(), block.len()) }.into()).map(drop)
}

pub(super) fn fanotify() -> io::Result<libc::c_long> {
    const REPORT_FILE_IDS: u32 = 0x200;
    // SAFETY: takes numbers only.
    check(unsafe { libc::syscall(libc::SYS_fanotify_init, REPORT_FILE_IDS, 0) })
}

/// Asks for a pipe of 64 MiB; the default of `fs.pipe-max-size` is 1 MiB.
pub(super) fn enlarge_pipe() -> io::Result<()> {
    let (reader, _writer) = io::pipe()?;
    // SAFETY: takes numbers only.
    check(unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_SETPIPE_SZ, 64 << 20) }.into()).map(drop)
}

pub(super) fn realtime_priority() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: the kernel reads one structure; 0 is this process.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) }.into()).map(drop)
}

/// Runs a copy of this program from a memory file.
pub(super) fn run_from_memory_file() -> io::Result<()> {
    let name = CString::new("brought-in")?;
    let make = |flags: libc::c_uint| {
        // SAFETY: the name ends with NUL.
        unsafe { libc::memfd_create(name.as_ptr(), flags) }
    };
    let number = [libc::MFD_EXEC, 0]
        .into_iter()
        .map(|flag| make(libc::MFD_CLOEXEC | flag))
        .find(|number| *number >= 0)
        .ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel just created this descriptor for us.
    let mut file = unsafe { File::from_raw_fd(number) };
    file.write_all(&std::fs::read("/proc/self/exe")?)?;
    let status = Command::new(format!("/proc/self/fd/{number}")).arg("nothing").status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(status.to_string())) }
}

/// Touches `wanted` bytes of memory and returns how many, unless the kernel kills it first.
pub(super) fn use_memory(wanted: u64) -> u64 {
    const STEP: usize = 4 << 20;
    let mut held: Vec<Vec<u8>> = Vec::new();
    let mut used = 0;
    while used < wanted {
        let mut block = Vec::new();
        if block.try_reserve_exact(STEP).is_err() {
            break;
        }
        block.resize(STEP, 1);
        used += STEP as u64;
        held.push(block);
    }
    std::hint::black_box(&held);
    used
}
