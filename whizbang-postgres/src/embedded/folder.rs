//! A folder for a server, which another process can tell from one that nobody looks after.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use super::locations;

/// The file whose lock says that somebody looks after the folder.
pub(super) const LOCK: &str = "lock";

/// A new folder and the lock on it; removed when dropped, unless it was handed over.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    lock: File,
    ours: bool,
}

impl Folder {
    /// Makes a folder below `base`.
    ///
    /// It gets the name that [sweeping](super::sweep) looks for once it is locked, so a folder of
    /// that name without a lock has lost its process.
    pub(super) fn create(base: &Path) -> io::Result<Self> {
        let fresh = tempfile::Builder::new()
            .prefix(&locations::unlocked_prefix())
            .permissions(locations::closed())
            .tempdir_in(base)?;
        let lock = File::create(fresh.path().join(LOCK))?;
        lock.lock()?;
        let name = fresh.path().file_name().unwrap_or_default();
        let name = name.to_string_lossy();
        let suffix = name.strip_prefix(&locations::unlocked_prefix());
        let path = base.join(format!(
            "{}{}",
            locations::prefix(),
            suffix.unwrap_or_default()
        ));
        // Renaming replaces an empty folder, and only of our own user: a free name or none at all.
        fs::rename(fresh.path(), &path)?;
        let _moved = fresh.keep();
        Ok(Self {
            path,
            lock,
            ours: true,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A handle for a process that is to hold the lock as well.
    pub(super) fn lock(&self) -> io::Result<File> {
        self.lock.try_clone()
    }

    /// Leaves the folder to the process that holds the lock.
    pub(super) fn hand_over(mut self) {
        self.ours = false;
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.ours {
            return;
        }
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(folder = %self.path.display(), %error, "could not remove a folder");
        }
    }
}
