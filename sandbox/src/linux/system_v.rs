//! A System V shared memory segment, as a canary.
#![allow(unsafe_code)]

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
