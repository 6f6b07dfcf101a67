//! Where templates, data and sockets are kept.

use std::{
    env, fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use rustix::process::geteuid;
use tempfile::TempDir;

use super::{EmbeddedError, account::Account, error::Doing, folder::Folder};

/// A socket's path may have 107 bytes on Linux, 103 on macOS; its lock file is longer by five.
const LONGEST_SOCKET: usize = 103;
const SOCKET_NAME: usize = "/.s.PGSQL.65535".len();

/// Free memory that a server needs before its data goes there.
const ROOM: u64 = 1 << 30;

/// The folder that outlives the servers: templates and fetched programs.
pub(super) fn cache() -> Result<PathBuf, EmbeddedError> {
    let mut tried = io::Error::from(io::ErrorKind::NotFound);
    let wanted = cache_candidates();
    for folder in &wanted {
        match private_folder(folder) {
            Ok(()) => return Ok(folder.clone()),
            Err(error) => tried = error,
        }
    }
    let names: Vec<_> = wanted.iter().map(|f| f.display().to_string()).collect();
    Err(tried).doing(format_args!(
        "write to a cache folder ({}); set WHIZBANG_CACHE_DIR to one that is yours",
        names.join(", ")
    ))
}

fn cache_candidates() -> Vec<PathBuf> {
    if let Some(folder) = env::var_os("WHIZBANG_CACHE_DIR") {
        return vec![folder.into()];
    }
    let mut wanted = Vec::new();
    // Root's home is closed to the user it steps down to, who must be able to run what is here.
    if geteuid().is_root() {
        wanted.push(PathBuf::from("/var/cache/whizbang"));
    }
    let absolute = |name| {
        env::var_os(name)
            .map(PathBuf::from)
            .filter(|p| p.is_absolute())
    };
    if let Some(folder) = absolute("XDG_CACHE_HOME") {
        wanted.push(folder.join("whizbang"));
    }
    if let Some(home) = absolute("HOME") {
        wanted.push(home.join(".cache/whizbang"));
    }
    wanted.push(env::temp_dir().join(format!("whizbang-cache-{}", geteuid().as_raw())));
    wanted
}

/// Makes sure that a folder exists, is ours, and that nobody else can write to it.
fn private_folder(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(folder)?;
    let meta = fs::symlink_metadata(folder)?;
    if !meta.is_dir() || meta.uid() != geteuid().as_raw() {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{} belongs to somebody else", folder.display()),
        ));
    }
    if meta.permissions().mode() & 0o022 != 0 {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    }
    tempfile::tempfile_in(folder).map(drop)
}

/// How the names of this user's server folders begin.
pub(super) fn prefix() -> String {
    format!("whizbang-pg-{}-", geteuid().as_raw())
}

/// How the name of a folder begins for the instant in which it is made and not locked yet.
pub(super) fn unlocked_prefix() -> String {
    format!("whizbang-new-{}-", geteuid().as_raw())
}

/// How the name of a socket folder begins; the server's folder names it.
pub(super) fn socket_prefix() -> String {
    format!("whizbang-so-{}-", geteuid().as_raw())
}

/// Every folder that servers may have been put in.
pub(super) fn bases() -> Vec<PathBuf> {
    if let Some(folder) = env::var_os("WHIZBANG_DATA_DIR") {
        return vec![folder.into()];
    }
    public_folders()
}

fn public_folders() -> Vec<PathBuf> {
    let mut bases = vec![PathBuf::from("/dev/shm"), env::temp_dir()];
    for usual in ["/tmp", "/var/tmp"] {
        if !bases.iter().any(|base| base == Path::new(usual)) {
            bases.push(usual.into());
        }
    }
    bases
}

/// A new folder for a server: in memory where there is room, on disk for a durable one.
pub(super) fn server_folder(account: &Account, durable: bool) -> Result<Folder, EmbeddedError> {
    let mut bases = bases();
    if env::var_os("WHIZBANG_DATA_DIR").is_some() {
        // The user knows better.
    } else if durable {
        bases.retain(|base| !in_memory(base));
        if let Ok(cache) = cache() {
            bases.push(cache);
        }
    } else {
        bases.retain(|base| base != Path::new("/dev/shm") || room(base) >= ROOM);
    }
    first_usable(&bases, account, Folder::create).doing("make a folder for the server's data")
}

/// A new folder for a socket, when the path of the server's own folder is too long for one.
pub(super) fn socket_folder(account: &Account) -> Result<TempDir, EmbeddedError> {
    let mut bases = public_folders();
    if let Some(folder) = env::var_os("XDG_RUNTIME_DIR") {
        bases.push(folder.into());
    }
    let prefix = socket_prefix();
    let name = prefix.len() + "/XXXXXX".len();
    bases.retain(|base| base.as_os_str().len() + name + SOCKET_NAME <= LONGEST_SOCKET);
    first_usable(&bases, account, |base| {
        tempfile::Builder::new()
            .prefix(&prefix)
            .permissions(closed())
            .tempdir_in(base)
    })
    .doing("find a folder with a path short enough for a socket")
}

/// Whether a socket can be put into a folder.
pub(super) fn fits_socket(folder: &Path) -> bool {
    folder.as_os_str().len() + SOCKET_NAME <= LONGEST_SOCKET
}

/// The permissions of a folder that only its owner gets into, whatever the umask.
pub(super) fn closed() -> fs::Permissions {
    fs::Permissions::from_mode(0o700)
}

/// Makes something in the first folder that allows it and that `account` can get to.
fn first_usable<T>(
    bases: &[PathBuf],
    account: &Account,
    make: impl Fn(&Path) -> io::Result<T>,
) -> io::Result<T> {
    let mut problem = io::Error::new(io::ErrorKind::NotFound, "no folder qualifies");
    for base in bases.iter().filter(|base| account.reaches(base)) {
        match make(base) {
            Ok(made) => return Ok(made),
            Err(error) => problem = error,
        }
    }
    Err(problem)
}

fn room(folder: &Path) -> u64 {
    rustix::fs::statvfs(folder).map_or(0, |stat| stat.f_bavail * stat.f_frsize)
}

#[cfg(target_os = "linux")]
fn in_memory(folder: &Path) -> bool {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    rustix::fs::statfs(folder).is_ok_and(|stat| {
        let kind = stat.f_type as u64 & 0xffff_ffff;
        kind == TMPFS || kind == RAMFS
    })
}

#[cfg(not(target_os = "linux"))]
fn in_memory(folder: &Path) -> bool {
    folder == Path::new("/dev/shm")
}
