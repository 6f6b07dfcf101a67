//! Copying a folder and all below it.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::{DirBuilderExt, lchown},
    path::Path,
};

/// How much was copied, to tell a whole template from one cut short.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) files: u64,
    pub(super) bytes: u64,
}

/// Copies a folder to a new place, readable by its owner only, and gives it to `owner`.
pub(super) fn copy(from: &Path, to: &Path, owner: Option<(u32, u32)>) -> io::Result<Tally> {
    let mut tally = Tally::default();
    copy_folder(from, to, owner, &mut tally)?;
    Ok(tally)
}

fn copy_folder(
    from: &Path,
    to: &Path,
    owner: Option<(u32, u32)>,
    tally: &mut Tally,
) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target, owner, tally)?;
        } else {
            tally.files += 1;
            tally.bytes += fs::copy(entry.path(), &target)?;
            give(&target, owner)?;
        }
    }
    give(to, owner)
}

/// Gives one file or folder to `owner`.
pub(super) fn give(path: &Path, owner: Option<(u32, u32)>) -> io::Result<()> {
    match owner {
        Some((uid, gid)) => lchown(path, Some(uid), Some(gid)),
        None => Ok(()),
    }
}
