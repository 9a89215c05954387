//! How the size of a clone's upper layer is limited.
//!
//! | bound | the upper layer is | to make it | to remove it |
//! |---|---|---|---|
//! | tmpfs | in memory, a file system of the quota's size | one mount | one unmount |
//! | project quota | a folder whose size the disk's file system counts | three system calls | a walk through the folder |
//! | loop | a sparse file with its own file system | `mke2fs` and one mount | one unmount, one file |
//!
//! tmpfs is the default: it is the fastest, works on every machine, and writes nothing to a disk. The other two are for
//! clones that write more than fits into memory.

use super::super::mounts::{self, Mount};
use super::{loop_device, project_quota};
use crate::config::DiskBound;
use crate::host::command::Tool;
use nix::mount::mount;
use serde::{Deserialize, Serialize};
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The mount option by which ext4 and XFS show that project quotas are enforced, not only counted.
const QUOTA_OPTION: &str = "prjquota";

/// The bound of one clone. It is part of the clone's label, because the setting may change while clones exist.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::host::linux) enum SizeBound {
    #[default]
    Tmpfs,
    ProjectQuota,
    Loop,
}

impl SizeBound {
    /// The bound for the configuration and this folder's file system, or why there is none.
    pub(super) fn choose(wanted: DiskBound, mounts: &[Mount], folder: &Path) -> Result<SizeBound, String> {
        let disk = mounts::holding(mounts, folder);
        let enforced = disk.is_some_and(|disk| {
            matches!(disk.kind.as_str(), "ext4" | "xfs")
                && disk.options.split(',').any(|one| one == QUOTA_OPTION)
        });
        match (wanted, enforced) {
            (DiskBound::Tmpfs, _) => Ok(SizeBound::Tmpfs),
            (DiskBound::ProjectQuota | DiskBound::Auto, true) => Ok(SizeBound::ProjectQuota),
            (DiskBound::Loop, _) | (DiskBound::Auto, false) => Ok(SizeBound::Loop),
            (DiskBound::ProjectQuota, false) => {
                let disk = disk.map_or_else(
                    || "the file system".to_owned(),
                    |disk| format!("the {} at {}", disk.kind, disk.at.display()),
                );
                Err(format!("{disk} does not enforce project quotas"))
            }
        }
    }

    /// For status and doctor.
    pub(in crate::host::linux) fn description(self) -> &'static str {
        match self {
            SizeBound::Tmpfs => "overlay on a sized tmpfs",
            SizeBound::ProjectQuota => "overlay on a folder with a project quota",
            SizeBound::Loop => "overlay on a sized file (loop device)",
        }
    }

    /// Whether the folder `disk` has this bound.
    pub(super) fn is_in_place(self, mounts: &[Mount], disk: &Path) -> bool {
        let kind = mounts::at(mounts, disk).map(|mount| mount.kind.as_str());
        match self {
            SizeBound::Tmpfs => kind == Some("tmpfs"),
            SizeBound::Loop => kind == Some("ext4"),
            // The quota was read back when it was set, and only root can change it.
            SizeBound::ProjectQuota => kind.is_none(),
        }
    }

    /// Limit the size of the empty folder `disk`.
    pub(super) fn limit(
        self,
        disk: &Path,
        image: &Path,
        size: u64,
        project: u32,
        mke2fs: &Tool,
    ) -> io::Result<()> {
        match self {
            SizeBound::Tmpfs => {
                let options = format!("size={size},mode=0700");
                mount(Some("hostd"), disk, Some("tmpfs"), super::FLAGS, Some(options.as_str()))
                    .map_err(io::Error::from)
            }
            SizeBound::ProjectQuota => project_quota::set(disk, project, size),
            SizeBound::Loop => {
                let file = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .mode(0o600)
                    .custom_flags(libc::O_NOFOLLOW)
                    .open(image)?;
                file.set_len(size)?;
                format(image, mke2fs)?;
                let device = loop_device::attach(&file)?;
                // No clone survives a crash of the system, so the file system needs neither a journal nor barriers.
                let options = Some("noauto_da_alloc,nobarrier");
                mount(Some(&device.path), disk, Some("ext4"), super::FLAGS, options).map_err(io::Error::from)
            }
        }
    }
}

/// Make a file system in the image.
fn format(image: &Path, mke2fs: &Tool) -> io::Result<()> {
    let image = image.to_str().ok_or_else(|| io::Error::other("the path of the image is not UTF-8"))?;
    let options =
        ["-q", "-F", "-t", "ext4", "-m", "0", "-O", "^has_journal", "-E", "nodiscard,lazy_itable_init=1"];
    let command = mke2fs.with(options.into_iter().chain([image]));
    // This runs on a blocking thread of tokio, where `block_on` is allowed.
    let outcome = tokio::runtime::Handle::current().block_on(command.run()).map_err(io::Error::other)?;
    if outcome.success() { Ok(()) } else { Err(io::Error::other(outcome.complaint())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn mount_of(at: &str, kind: &str, options: &str) -> Mount {
        let root = PathBuf::from("/");
        let (kind, source) = (kind.to_owned(), "x".to_owned());
        Mount { at: at.into(), root, flags: "rw".into(), kind, source, options: options.into() }
    }

    #[test]
    fn the_file_system_decides_which_bounds_are_possible() {
        let plain = [mount_of("/", "ext4", "rw,discard")];
        let quotas = [mount_of("/", "ext4", "rw"), mount_of("/srv", "xfs", "rw,attr2,prjquota")];
        let counted_only = [mount_of("/", "xfs", "rw,pqnoenforce")];
        let elsewhere = [mount_of("/", "btrfs", "rw,prjquota")];
        let clones = Path::new("/srv/clones");
        let choose = |wanted, seen: &[Mount]| SizeBound::choose(wanted, seen, clones);
        for seen in [&plain[..], &quotas, &counted_only, &elsewhere, &[]] {
            assert_eq!(choose(DiskBound::Tmpfs, seen), Ok(SizeBound::Tmpfs));
            assert_eq!(choose(DiskBound::Loop, seen), Ok(SizeBound::Loop));
        }
        assert_eq!(choose(DiskBound::Auto, &quotas), Ok(SizeBound::ProjectQuota));
        assert_eq!(choose(DiskBound::ProjectQuota, &quotas), Ok(SizeBound::ProjectQuota));
        for seen in [&plain[..], &counted_only, &elsewhere, &[]] {
            assert_eq!(choose(DiskBound::Auto, seen), Ok(SizeBound::Loop));
            assert!(
                choose(DiskBound::ProjectQuota, seen)
                    .unwrap_err()
                    .contains("does not enforce project quotas")
            );
        }
        // The folder's own file system decides, not one above it.
        assert_eq!(
            SizeBound::choose(DiskBound::Auto, &quotas, Path::new("/var/clones")),
            Ok(SizeBound::Loop)
        );
    }

    #[test]
    fn only_the_right_mount_is_a_bound() {
        let disk = Path::new("/c/.store/x/disk");
        let with = |kind: &str| [mount_of("/", "ext4", "rw"), mount_of("/c/.store/x/disk", kind, "rw")];
        let none = [mount_of("/", "ext4", "rw")];
        let in_place = |bound: SizeBound| {
            [&with("tmpfs")[..], &with("ext4"), &none].map(|mounts| bound.is_in_place(mounts, disk))
        };
        assert_eq!(in_place(SizeBound::Tmpfs), [true, false, false]);
        assert_eq!(in_place(SizeBound::Loop), [false, true, false]);
        assert_eq!(in_place(SizeBound::ProjectQuota), [false, false, true]);
    }
}
