//! How processes find the shared server: a small file that names its folder.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::OFlags;
use sha2::{Digest, Sha256};

/// The named pipe in a server's folder whose open write ends are its users.
pub(super) const HOLD: &str = "hold";

/// The file in a server's folder that says it takes new users.
pub(super) const OPEN: &str = "open";

/// A hold on a shared server: it runs at least as long as this lives.
#[derive(Debug)]
pub(super) struct Hold {
    _pipe: File,
}

/// Takes a hold on the server in a folder; `None` when it is gone or about to go.
pub(super) fn take_hold(folder: &Path) -> io::Result<Option<Hold>> {
    // Without a reader this fails at once. A link would lead out of the folder of a lesser user.
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let opened = OpenOptions::new()
        .write(true)
        .custom_flags(flags.bits() as i32)
        .open(folder.join(HOLD));
    let Ok(mut pipe) = opened else {
        return Ok(None);
    };
    if !pipe.metadata()?.file_type().is_fifo() || pipe.write_all(b"join\n").is_err() {
        return Ok(None);
    }
    // The supervisor takes this file away before its last look at the pipe, so when it is here
    // now, our word was there for that look.
    let open = fs::exists(folder.join(OPEN))?;
    Ok(open.then_some(Hold { _pipe: pipe }))
}

/// The folder that a pointer names, and the folder of its socket.
pub(super) fn read(pointer: &Path) -> Option<(PathBuf, PathBuf)> {
    let text = fs::read_to_string(pointer).ok()?;
    let mut lines = text.lines();
    Some((lines.next()?.into(), lines.next()?.into()))
}

/// Writes a pointer in one step, so that no reader sees half of it.
pub(super) fn write(pointer: &Path, folder: &Path, sockets: &Path) -> io::Result<()> {
    let parent = pointer.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(parent)?;
    writeln!(file, "{}\n{}", folder.display(), sockets.display())?;
    file.persist(pointer)?;
    Ok(())
}

/// The first sixteen hexadecimal digits of a text's SHA-256.
pub(super) fn digest(text: &str) -> String {
    let bytes = Sha256::digest(text.as_bytes());
    bytes.iter().take(8).map(|b| format!("{b:02x}")).collect()
}
