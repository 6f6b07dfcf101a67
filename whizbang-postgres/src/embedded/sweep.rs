//! Removing what servers have left whose supervisor was itself killed.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
    time::{Duration, SystemTime},
};

use rustix::{fs::OFlags, process::geteuid};

use super::{account::Account, folder::LOCK, locations, orphans, supervisor::SOCKETS};

/// A folder is made and locked in an instant, unless its process ended in that instant.
const MADE_WITHIN: Duration = Duration::from_secs(60 * 60);

/// Ends and removes this user's servers that nobody looks after.
///
/// No server depends on it, so what cannot be removed is only reported.
pub(super) fn sweep(account: &Account) {
    for base in locations::bases() {
        let Ok(entries) = fs::read_dir(base) else {
            continue;
        };
        for entry in entries.flatten() {
            let folder = entry.path();
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let swept = if name.starts_with(&locations::prefix()) {
                sweep_server(&folder, account)
            } else if name.starts_with(&locations::unlocked_prefix()) {
                sweep_unlocked(&folder, account)
            } else {
                continue;
            };
            match swept {
                Ok(false) => {}
                Ok(true) => tracing::info!(folder = %folder.display(), "removed an old server"),
                // Another process that starts a server now sweeps as well.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::warn!(folder = %folder.display(), %error, "an old server stays");
                }
            }
        }
    }
}

/// Removes a server whose lock nobody holds.
fn sweep_server(folder: &Path, account: &Account) -> io::Result<bool> {
    if !is_ours(&fs::symlink_metadata(folder)?, account) {
        return Ok(false);
    }
    let lock = File::options()
        .write(true)
        .custom_flags(OFlags::NOFOLLOW.bits() as i32)
        .open(folder.join(LOCK))?;
    if lock.try_lock().is_err() {
        return Ok(false);
    }
    orphans::end(folder).map_err(io::Error::other)?;
    if let Ok(sockets) = fs::read_to_string(folder.join(SOCKETS)) {
        remove_sockets(Path::new(&sockets), account)?;
    }
    fs::remove_dir_all(folder)?;
    Ok(true)
}

/// A socket folder of its own holds nothing but the socket and its lock file.
fn remove_sockets(folder: &Path, account: &Account) -> io::Result<()> {
    let own = folder.file_name().is_some_and(|name| {
        let prefix = locations::socket_prefix();
        name.to_string_lossy().starts_with(&prefix)
    });
    match fs::symlink_metadata(folder) {
        Ok(meta) if own && is_ours(&meta, account) => fs::remove_dir_all(folder),
        _ => Ok(()),
    }
}

/// Removes a folder whose process ended between making and locking it.
#[expect(clippy::disallowed_methods, reason = "files carry this machine's time")]
fn sweep_unlocked(folder: &Path, account: &Account) -> io::Result<bool> {
    let meta = fs::symlink_metadata(folder)?;
    let age = SystemTime::now().duration_since(meta.modified()?);
    if !is_ours(&meta, account) || age.is_ok_and(|age| age < MADE_WITHIN) {
        return Ok(false);
    }
    fs::remove_dir_all(folder)?;
    Ok(true)
}

/// Anybody may make a folder of such a name in a public place, so its owner is asked.
fn is_ours(meta: &fs::Metadata, account: &Account) -> bool {
    meta.is_dir() && [account.uid, geteuid().as_raw()].contains(&meta.uid())
}
