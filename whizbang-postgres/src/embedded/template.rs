//! The cached `initdb` template that every server is a copy of.

use std::{
    fs,
    fs::File,
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    EmbeddedError,
    account::Account,
    error::{Doing, tail},
    installation::Installation,
    locations,
    tree::{self, Tally},
};

/// What `initdb` is told beyond the folder; a change here makes a new template.
const OPTIONS: &[&str] = &[
    "--username=postgres",
    "--auth=trust",
    "--encoding=UTF8",
    "--locale=C",
    "--no-sync",
];

/// The file that says how large the whole template is.
const SEAL: &str = "whizbang-seal";

/// Copies the template to `data`, which must not exist, and makes the template where it must.
pub(super) fn copy_to(
    data: &Path,
    installation: &Installation,
    account: &Account,
) -> Result<(), EmbeddedError> {
    let place = Place::new(installation)?;
    let lock = File::create(&place.lock).doing("open the lock of the template")?;
    // Readers share the lock, so a template is never rebuilt under a copy.
    lock.lock_shared().doing("lock the template")?;
    if place.try_copy(data, account)? {
        return Ok(());
    }
    lock.unlock().doing("unlock the template")?;
    lock.lock().doing("lock the template")?;
    // Another process may have built it between the two locks.
    if place.try_copy(data, account)? {
        return Ok(());
    }
    place.build(installation, account)?;
    match place.try_copy(data, account)? {
        true => Ok(()),
        false => Err(std::io::Error::other("it changed while it was copied"))
            .doing(format_args!("copy the template {}", place.folder.display())),
    }
}

/// The files of one template.
struct Place {
    folder: PathBuf,
    lock: PathBuf,
    parent: PathBuf,
    name: String,
}

impl Place {
    fn new(installation: &Installation) -> Result<Self, EmbeddedError> {
        let parent = locations::cache()?.join("templates");
        fs::create_dir_all(&parent).doing("make the folder of the templates")?;
        let source = format!("{}\n{}", installation.folder.display(), OPTIONS.join("\n"));
        let name = format!(
            "{}-{}",
            installation.version,
            super::pointer::digest(&source)
        );
        Ok(Self {
            folder: parent.join(&name),
            lock: parent.join(format!("{name}.lock")),
            parent,
            name,
        })
    }

    /// Copies a whole template; says no, and leaves nothing, when it is missing or cut short.
    fn try_copy(&self, data: &Path, account: &Account) -> Result<bool, EmbeddedError> {
        let Some(sealed) = read_seal(&self.folder) else {
            return Ok(false);
        };
        let copied = tree::copy(&self.folder.join("data"), data, account.owner());
        if copied.as_ref().is_ok_and(|tally| *tally == sealed) {
            return Ok(true);
        }
        remove(data)?;
        // A full disk is no fault of the template.
        copied.doing(format_args!("copy the template to {}", data.display()))?;
        Ok(false)
    }

    /// Runs `initdb` beside, then moves the result into place in one step.
    fn build(&self, installation: &Installation, account: &Account) -> Result<(), EmbeddedError> {
        self.remove_remains()?;
        let workshop = locations::server_folder(account, false)?;
        tree::give(workshop.path(), account.owner()).doing("hand over the folder of initdb")?;
        let fresh = workshop.path().join("data");
        run_initdb(&fresh, workshop.path(), installation, account)?;
        let partial = tempfile::Builder::new()
            .prefix(&format!("{}.partial-", self.name))
            .permissions(locations::closed())
            .tempdir_in(&self.parent)
            .doing("make a folder for the template")?;
        let tally = tree::copy(&fresh, &partial.path().join("data"), None)
            .doing("copy the new template to the cache")?;
        let seal = format!("{} {}\n", tally.files, tally.bytes);
        fs::write(partial.path().join(SEAL), seal).doing("seal the template")?;
        fs::rename(partial.path(), &self.folder).doing("move the template into place")?;
        // The folder has moved, so there is nothing left to remove under its old name.
        let _moved = partial.keep();
        Ok(())
    }

    /// Removes a broken template and what builders that were killed have left.
    fn remove_remains(&self) -> Result<(), EmbeddedError> {
        let partial = format!("{}.partial-", self.name);
        for entry in fs::read_dir(&self.parent)
            .doing("list the templates")?
            .flatten()
        {
            if entry.file_name().to_string_lossy().starts_with(&partial) {
                remove(&entry.path())?;
            }
        }
        remove(&self.folder)
    }
}

fn remove(folder: &Path) -> Result<(), EmbeddedError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
    .doing(format_args!("remove {}", folder.display()))
}

fn read_seal(folder: &Path) -> Option<Tally> {
    let text = fs::read_to_string(folder.join(SEAL)).ok()?;
    let (files, bytes) = text.trim().split_once(' ')?;
    Some(Tally {
        files: files.parse().ok()?,
        bytes: bytes.parse().ok()?,
    })
}

fn run_initdb(
    data: &Path,
    workshop: &Path,
    installation: &Installation,
    account: &Account,
) -> Result<(), EmbeddedError> {
    let program = installation.program("initdb");
    let mut command = Command::new(&program);
    command
        .arg("-D")
        .arg(data)
        .args(OPTIONS)
        .current_dir(workshop);
    let output = account
        .apply(&mut command)
        .output()
        .doing(format_args!("run {}", program.display()))?;
    if output.status.success() {
        return Ok(());
    }
    let printed = [output.stdout, output.stderr].concat();
    Err(EmbeddedError::InitDb {
        command: format!("{} -D {}", program.display(), data.display()),
        status: output.status,
        output: tail(&String::from_utf8_lossy(&printed), 20),
    })
}
