//! How a clone's size is bounded.
//!
//! | bound | what a clone changes is | making it | removing it |
//! |---|---|---|---|
//! | tmpfs | in memory, a file system as large as the quota | one mount | one unmount |
//! | project quota | in a folder, counted by the disk's file system | three calls | a walk through the folder |
//! | loop | in a sparse file with a file system of its own | `mke2fs` and one mount | one unmount, one file |
//!
//! In memory is the default: it is the cheapest both ways, works on every machine, and leaves nothing on a disk. The
//! other two are for clones that write more than memory holds.

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

/// The option by which ext4 and XFS say that project quotas are kept, not only counted.
const QUOTA_OPTION: &str = "prjquota";

/// The bound of one clone; written into its mark, because a setting may change while clones live.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::host::linux) enum Bound {
    #[default]
    Tmpfs,
    ProjectQuota,
    Loop,
}

impl Bound {
    /// What the configuration asks for, on the disk of this folder; or why that cannot be.
    pub(super) fn choose(wanted: DiskBound, seen: &[Mount], folder: &Path) -> Result<Bound, String> {
        let disk = mounts::holding(seen, folder);
        let counted = disk.is_some_and(|disk| {
            matches!(disk.kind.as_str(), "ext4" | "xfs")
                && disk.options.split(',').any(|one| one == QUOTA_OPTION)
        });
        match (wanted, counted) {
            (DiskBound::Tmpfs, _) => Ok(Bound::Tmpfs),
            (DiskBound::ProjectQuota | DiskBound::Auto, true) => Ok(Bound::ProjectQuota),
            (DiskBound::Loop, _) | (DiskBound::Auto, false) => Ok(Bound::Loop),
            (DiskBound::ProjectQuota, false) => {
                let disk = disk.map_or_else(
                    || "the file system".to_owned(),
                    |disk| format!("the {} at {}", disk.kind, disk.at.display()),
                );
                Err(format!("{disk} keeps no project quotas"))
            }
        }
    }

    /// For status and doctor.
    pub(in crate::host::linux) fn word(self) -> &'static str {
        match self {
            Bound::Tmpfs => "overlay on a sized tmpfs",
            Bound::ProjectQuota => "overlay on a folder with a project quota",
            Bound::Loop => "overlay on a sized file (loop device)",
        }
    }

    /// Whether what bounds the folder `disk` is there.
    pub(super) fn is_kept(self, seen: &[Mount], disk: &Path) -> bool {
        let kind = mounts::at(seen, disk).map(|mount| mount.kind.as_str());
        match self {
            Bound::Tmpfs => kind == Some("tmpfs"),
            Bound::Loop => kind == Some("ext4"),
            // Read back when it was set; only root could change it.
            Bound::ProjectQuota => kind.is_none(),
        }
    }

    /// Bound the empty folder `disk`.
    pub(super) fn keep(
        self,
        disk: &Path,
        image: &Path,
        size: u64,
        project: u32,
        mke2fs: &Tool,
    ) -> io::Result<()> {
        match self {
            Bound::Tmpfs => {
                // An empty file uses no block, so the number of files is bounded too.
                let options = format!("size={size},nr_inodes={},mode=0700", inodes(size));
                mount(Some("hostd"), disk, Some("tmpfs"), super::FLAGS, Some(options.as_str()))
                    .map_err(io::Error::from)
            }
            Bound::ProjectQuota => project_quota::set(disk, project, size),
            Bound::Loop => {
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
                // Nothing in it outlives a crash, so it needs no journal and no care about order.
                let options = Some("noauto_da_alloc,nobarrier");
                mount(Some(&device.path), disk, Some("ext4"), super::FLAGS, options).map_err(io::Error::from)
            }
        }
    }
}

/// The most files on a disk of this size in memory: one for each 16 KiB, as `mke2fs` makes them.
fn inodes(size: u64) -> u64 {
    (size / (16 << 10)).max(1024)
}

/// Make a file system in the image.
fn format(image: &Path, mke2fs: &Tool) -> io::Result<()> {
    let image = image.to_str().ok_or_else(|| io::Error::other("the path of the image is no text"))?;
    let options =
        ["-q", "-F", "-t", "ext4", "-m", "0", "-O", "^has_journal", "-E", "nodiscard,lazy_itable_init=1"];
    let command = mke2fs.with(options.into_iter().chain([image]));
    // This is one of the threads that may block.
    let outcome = tokio::runtime::Handle::current().block_on(command.run()).map_err(io::Error::other)?;
    if outcome.success() { Ok(()) } else { Err(io::Error::other(outcome.complaint())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn mount_of(at: &str, kind: &str, options: &str) -> Mount {
        let root = PathBuf::from("/");
        Mount { at: PathBuf::from(at), root, kind: kind.into(), source: "x".into(), options: options.into() }
    }

    #[test]
    fn the_disk_decides_what_is_possible() {
        let plain = [mount_of("/", "ext4", "rw,discard")];
        let quotas = [mount_of("/", "ext4", "rw"), mount_of("/srv", "xfs", "rw,attr2,prjquota")];
        let counted_only = [mount_of("/", "xfs", "rw,pqnoenforce")];
        let elsewhere = [mount_of("/", "btrfs", "rw,prjquota")];
        let clones = Path::new("/srv/clones");
        let choose = |wanted, seen: &[Mount]| Bound::choose(wanted, seen, clones);
        for seen in [&plain[..], &quotas, &counted_only, &elsewhere, &[]] {
            assert_eq!(choose(DiskBound::Tmpfs, seen), Ok(Bound::Tmpfs));
            assert_eq!(choose(DiskBound::Loop, seen), Ok(Bound::Loop));
        }
        assert_eq!(choose(DiskBound::Auto, &quotas), Ok(Bound::ProjectQuota));
        assert_eq!(choose(DiskBound::ProjectQuota, &quotas), Ok(Bound::ProjectQuota));
        for seen in [&plain[..], &counted_only, &elsewhere, &[]] {
            assert_eq!(choose(DiskBound::Auto, seen), Ok(Bound::Loop));
            assert!(choose(DiskBound::ProjectQuota, seen).unwrap_err().contains("no project quotas"));
        }
        // The folder's own disk counts, not one above it.
        assert_eq!(Bound::choose(DiskBound::Auto, &quotas, Path::new("/var/clones")), Ok(Bound::Loop));
    }

    #[test]
    fn only_the_right_mount_keeps_a_bound() {
        let disk = Path::new("/c/.store/x/disk");
        let with = |kind: &str| [mount_of("/", "ext4", "rw"), mount_of("/c/.store/x/disk", kind, "rw")];
        let none = [mount_of("/", "ext4", "rw")];
        let kept =
            |bound: Bound| [&with("tmpfs")[..], &with("ext4"), &none].map(|seen| bound.is_kept(seen, disk));
        assert_eq!(kept(Bound::Tmpfs), [true, false, false]);
        assert_eq!(kept(Bound::Loop), [false, true, false]);
        assert_eq!(kept(Bound::ProjectQuota), [false, false, true]);
    }
}
