//! Sealed memory files (memfd). They pass programs and data without touching a disk.

use crate::{Error, Layer};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

/// The stages, built by `build.rs`.
const STAGES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sandbox-stages"));

/// The escape battery, built by `build.rs`.
pub(crate) const PROBE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sandbox-probe"));

/// The executable file of the stages, created once and shared by all launches.
pub(crate) fn stages() -> Result<&'static OwnedFd, Error> {
    static FILE: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(file) = FILE.get() {
        return Ok(file);
    }
    let file = executable("sandbox-stages", STAGES)?;
    Ok(FILE.get_or_init(|| file))
}

/// The executable file of the escape battery.
pub(crate) fn probe() -> Result<OwnedFd, Error> {
    executable("sandbox-probe", PROBE)
}

fn executable(name: &'static str, content: &'static [u8]) -> Result<OwnedFd, Error> {
    // Kernels before 6.3 do not know MFD_EXEC; their memory files are always executable.
    let file = match create(name, MFdFlags::from_bits_retain(libc::MFD_EXEC)) {
        Err(nix::Error::EINVAL) => create(name, MFdFlags::empty()),
        Err(nix::Error::EACCES) => return Err(not_executable("vm.memfd_noexec forbids it")),
        other => other,
    };
    let file = sealed(name, file, content)?;
    super::pages::release(content);
    Ok(file)
}

/// The machine forbids programs in memory files.
pub(crate) fn not_executable(reason: &str) -> Error {
    Error::Layer {
        layer: Layer::Bubblewrap,
        reason: format!("the sandbox's first stage cannot be executed from memory: {reason}"),
        fix: Some(super::fixes::memory_programs()),
    }
}

/// A sealed file with the given content, to be read from its beginning.
pub(crate) fn data(name: &'static str, content: &[u8]) -> Result<OwnedFd, Error> {
    sealed(name, create(name, MFdFlags::empty()), content)
}

/// A file to write to and read back.
pub(crate) fn scratch(name: &'static str) -> Result<OwnedFd, Error> {
    create(name, MFdFlags::empty()).map_err(|e| failed(name, e.into()))
}

fn create(name: &str, more: MFdFlags) -> nix::Result<OwnedFd> {
    memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING | more)
}

fn sealed(name: &'static str, file: nix::Result<OwnedFd>, content: &[u8]) -> Result<OwnedFd, Error> {
    let mut file = File::from(file.map_err(|e| failed(name, e.into()))?);
    file.write_all(content).map_err(|e| failed(name, e))?;
    file.rewind().map_err(|e| failed(name, e))?;
    let seals =
        SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).map_err(|e| failed(name, e.into()))?;
    Ok(file.into())
}

fn failed(name: &str, source: std::io::Error) -> Error {
    Error::Io { what: format!("memory file {name}"), source }
}
