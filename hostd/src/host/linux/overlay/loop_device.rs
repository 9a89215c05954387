//! Loop devices (loop(4)): a file as a block device.
//!
//! `LO_FLAGS_AUTOCLEAR` makes the kernel free a device with its last user, which is the mount. So there is no device to
//! remove, and a crash between attaching and mounting leaves none.

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::path::PathBuf;

/// `LOOP_CTL_GET_FREE`, `LOOP_CONFIGURE` and `LO_FLAGS_AUTOCLEAR` of the kernel's `loop.h`.
const GET_FREE: libc::Ioctl = 0x4C82;
const CONFIGURE: libc::Ioctl = 0x4C0A;
const AUTOCLEAR: u32 = 4;
/// Another process may take the device between `LOOP_CTL_GET_FREE` and `LOOP_CONFIGURE`.
const ATTEMPTS: usize = 64;

/// `struct loop_config`.
#[repr(C)]
struct Config {
    file: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// `struct loop_info64`.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    real_device: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// A device that is attached to a file. The kernel frees it when neither this value nor a mount uses it.
#[derive(Debug)]
pub(super) struct LoopDevice {
    pub(super) path: PathBuf,
    _held: File,
}

/// Attach a free device to this file.
pub(super) fn attach(file: &File) -> io::Result<LoopDevice> {
    let open = |path: &str| {
        let opened = OpenOptions::new().read(true).write(true).open(path);
        opened.map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))
    };
    let control = open("/dev/loop-control")?;
    for _ in 0..ATTEMPTS {
        let path = format!("/dev/loop{}", free_number(control.as_raw_fd())?);
        let device = open(&path)?;
        match configure(device.as_raw_fd(), file.as_raw_fd()) {
            Ok(()) => return Ok(LoopDevice { path: path.into(), _held: device }),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(error) => return Err(io::Error::new(error.kind(), format!("{path}: {error}"))),
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "other processes took every free loop device"))
}

fn free_number(control: RawFd) -> io::Result<i32> {
    // SAFETY: this request takes no argument, and the descriptor is open.
    let number = unsafe { libc::ioctl(control, GET_FREE) };
    if number < 0 { Err(io::Error::last_os_error()) } else { Ok(number) }
}

fn configure(device: RawFd, file: RawFd) -> io::Result<()> {
    let config = Config {
        file: u32::try_from(file).map_err(io::Error::other)?,
        block_size: 0,
        info: LoopInfo {
            device: 0,
            inode: 0,
            real_device: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: AUTOCLEAR,
            file_name: [0; 64],
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        },
        reserved: [0; 8],
    };
    // SAFETY: the kernel reads one `loop_config`. `config` has its layout and lives until the call returns.
    let done = unsafe { libc::ioctl(device, CONFIGURE, &raw const config) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
