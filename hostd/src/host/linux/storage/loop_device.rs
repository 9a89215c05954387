//! Loop devices: a file as a disk.
//!
//! Each frees itself with its last user (the mount), so there is none to remove, and none is left by a crash between
//! taking and mounting it.

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::path::PathBuf;

/// Of the kernel's `loop.h`.
const GET_FREE: libc::Ioctl = 0x4C82;
const CONFIGURE: libc::Ioctl = 0x4C0A;
const AUTOCLEAR: u32 = 4;
/// Others take devices too; between asking for a free one and having it, it may be gone.
const ATTEMPTS: usize = 64;

/// `struct loop_config`.
#[repr(C)]
struct Config {
    file: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// `struct loop_info64`.
#[repr(C)]
struct Info {
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

/// A device that is a file's; it is given back when neither this nor a mount uses it.
#[derive(Debug)]
pub(super) struct LoopDevice {
    pub(super) path: PathBuf,
    _held: File,
}

/// Take a free device for this file.
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
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "every loop device was taken by somebody else"))
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
        info: Info {
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
    // SAFETY: the kernel reads one `loop_config`, which `config` is laid out as and which lives until the call returns.
    let done = unsafe { libc::ioctl(device, CONFIGURE, &raw const config) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
