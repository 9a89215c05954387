//! Stores the world in memory, or in a folder that outlives the process.
//!
//! In a folder every change survives the death of the process: the world is written to a temporary file, which replaces
//! the old one by rename(2). Nothing is synced to disk, because tests kill processes and not the machine. Several processes
//! can share the folder, so that a test can inspect and change a daemon's world. A lock file serialises them, and the
//! version in it invalidates the copies of the others.

use super::world::World;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(super) struct Store {
    world: World,
    disk: Option<Disk>,
}

#[derive(Debug)]
struct Disk {
    dir: PathBuf,
    lock: File,
    version: u64,
}

impl Store {
    pub(super) fn in_memory() -> Store {
        Store { world: World::new(), disk: None }
    }

    /// Open the world in this folder, or begin one.
    pub(super) fn open(dir: &Path) -> io::Result<Store> {
        fs::create_dir_all(dir)?;
        let lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(dir.join("world.lock"))?;
        let disk = Disk { dir: dir.to_owned(), lock, version: u64::MAX };
        let mut store = Store { world: World::new(), disk: Some(disk) };
        store.look(|_| ())?;
        Ok(store)
    }

    /// Read the world as it is now.
    pub(super) fn look<R>(&mut self, read: impl FnOnce(&World) -> R) -> io::Result<R> {
        self.locked(|world, _| Ok(read(world)))
    }

    /// Inspect the world as the host's tools do. Only the polls of a dying jail change.
    pub(super) fn look_at<R>(&mut self, look: impl FnOnce(&mut World) -> R) -> io::Result<R> {
        self.locked(|world, disk| {
            let dying = world.anything_dying();
            let answer = look(world);
            match disk {
                Some(disk) if dying => disk.save(world)?,
                _ => {}
            }
            Ok(answer)
        })
    }

    /// Change the world atomically. The change is stored when this returns.
    pub(super) fn change<R>(&mut self, change: impl FnOnce(&mut World) -> R) -> io::Result<R> {
        self.locked(|world, disk| {
            let answer = change(world);
            if let Some(disk) = disk {
                disk.save(world)?;
            }
            Ok(answer)
        })
    }

    fn locked<R>(
        &mut self,
        work: impl FnOnce(&mut World, Option<&mut Disk>) -> io::Result<R>,
    ) -> io::Result<R> {
        let Some(disk) = &mut self.disk else { return work(&mut self.world, None) };
        disk.lock.lock()?;
        let answer = disk.refresh(&mut self.world).and_then(|()| work(&mut self.world, Some(&mut *disk)));
        disk.lock.unlock()?;
        answer
    }
}

impl Disk {
    fn refresh(&mut self, world: &mut World) -> io::Result<()> {
        let version = self.read_version()?;
        if version == self.version {
            return Ok(());
        }
        let path = self.dir.join("world.json");
        *world = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => World::new(),
            Err(error) => return Err(error),
        };
        self.version = version;
        Ok(())
    }

    fn save(&mut self, world: &World) -> io::Result<()> {
        // The version first: after a death before the rename the others just read the old world again.
        let version = self.read_version()?.wrapping_add(1);
        self.lock.write_all_at(&version.to_le_bytes(), 0)?;
        let fresh = self.dir.join("world.json.tmp");
        fs::write(&fresh, serde_json::to_vec(world)?)?;
        fs::rename(&fresh, self.dir.join("world.json"))?;
        self.version = version;
        Ok(())
    }

    fn read_version(&self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        match self.lock.read_exact_at(&mut bytes, 0) {
            Ok(()) => Ok(u64::from_le_bytes(bytes)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
            Err(error) => Err(error),
        }
    }
}
