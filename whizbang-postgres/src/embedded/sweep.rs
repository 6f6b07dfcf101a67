//! Removing what servers have left whose supervisor was itself killed.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
    time::{Duration, SystemTime},
};

use rustix::fs::OFlags;

use super::{account::Account, locations, orphans};

/// A folder this young may belong to a server that is just being prepared.
const YOUNG: Duration = Duration::from_secs(60);

/// Ends and removes this user's servers that nobody looks after.
///
/// Nothing depends on it, so a folder that cannot be removed is only reported.
pub(super) fn sweep(account: &Account) {
    let prefix = locations::prefix();
    for base in locations::bases() {
        let Ok(entries) = fs::read_dir(base) else {
            continue;
        };
        for entry in entries.flatten() {
            if !entry.file_name().to_string_lossy().starts_with(&prefix) {
                continue;
            }
            let folder = entry.path();
            match sweep_folder(&folder, account) {
                Ok(false) => {}
                Ok(true) => tracing::info!(folder = %folder.display(), "removed an old server"),
                Err(error) => {
                    tracing::warn!(folder = %folder.display(), %error, "could not remove an old server");
                }
            }
        }
    }
}

fn sweep_folder(folder: &Path, account: &Account) -> io::Result<bool> {
    let meta = fs::symlink_metadata(folder)?;
    let ours = [account.uid, rustix::process::geteuid().as_raw()].contains(&meta.uid());
    let age = SystemTime::now().duration_since(meta.modified()?);
    if !meta.is_dir() || !ours || age.is_ok_and(|age| age < YOUNG) {
        return Ok(false);
    }
    let lock = File::options()
        .write(true)
        .custom_flags(OFlags::NOFOLLOW.bits() as i32)
        .open(folder.join("lock"));
    let lock = match lock {
        Ok(lock) => lock,
        // A folder for sockets or for `initdb`, which has no lock, is old when a day old.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return remove_when_old(folder, &meta);
        }
        Err(error) => return Err(error),
    };
    if lock.try_lock().is_err() {
        return Ok(false);
    }
    orphans::end(&folder.join("data")).map_err(io::Error::other)?;
    fs::remove_dir_all(folder)?;
    Ok(true)
}

fn remove_when_old(folder: &Path, meta: &fs::Metadata) -> io::Result<bool> {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    let old = SystemTime::now()
        .duration_since(meta.modified()?)
        .is_ok_and(|age| age > DAY);
    if old {
        fs::remove_dir_all(folder)?;
    }
    Ok(old)
}
