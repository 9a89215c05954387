//! System V and POSIX inter-process communication objects for the canaries.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;

/// One page of shared memory, removed when dropped.
pub(crate) struct Segment {
    key: i32,
    id: i32,
}

impl Segment {
    /// Makes a segment that everybody in this ipc namespace may attach.
    pub(crate) fn make() -> io::Result<Segment> {
        let first = i32::from_ne_bytes(std::process::id().to_ne_bytes()) & 0x00ff_ffff;
        for attempt in 0..64 {
            let key = 0x5a00_0000 | (first.wrapping_add(attempt * 7919) & 0x00ff_ffff);
            let flags = libc::IPC_CREAT | libc::IPC_EXCL | 0o666;
            // SAFETY: takes numbers only.
            let id = unsafe { libc::shmget(key, 4096, flags) };
            if id >= 0 {
                return Ok(Segment { key, id });
            }
        }
        Err(io::Error::last_os_error())
    }

    pub(crate) fn key(&self) -> i32 {
        self.key
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: removes the segment made by this value; no buffer is passed.
        unsafe { libc::shmctl(self.id, libc::IPC_RMID, std::ptr::null_mut()) };
    }
}

/// A POSIX message queue, removed when dropped.
pub(crate) struct MessageQueue {
    name: CString,
    descriptor: i32,
}

impl MessageQueue {
    /// Makes a queue that everybody in this ipc namespace may open. `name` has no slash.
    pub(crate) fn make(name: &str) -> io::Result<MessageQueue> {
        let name = CString::new(format!("/{name}"))?;
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR | libc::O_CLOEXEC;
        let mode: libc::mode_t = 0o666;
        // SAFETY: the name ends with NUL; with O_CREAT come the mode and, as null, the defaults.
        let descriptor =
            unsafe { libc::mq_open(name.as_ptr(), flags, mode, std::ptr::null::<libc::mq_attr>()) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(MessageQueue { name, descriptor })
    }

    pub(crate) fn name(&self) -> String {
        self.name.to_string_lossy().into_owned()
    }
}

impl Drop for MessageQueue {
    fn drop(&mut self) {
        // SAFETY: closes the queue opened by this value.
        unsafe { libc::mq_close(self.descriptor) };
        // SAFETY: removes the name made by this value.
        unsafe { libc::mq_unlink(self.name.as_ptr()) };
    }
}
