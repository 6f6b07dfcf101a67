//! Finding the PostgreSQL programs on this machine.

use std::{
    collections::BTreeSet,
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{EmbeddedError, account::Account, machine::Machine};

/// The oldest PostgreSQL that the library works with.
const OLDEST: u32 = 13;

/// The PostgreSQL programs that private servers are started from.
///
/// ```
/// use whizbang_postgres::embedded::Installation;
///
/// let found = Installation::find()?;
/// println!("PostgreSQL {} in {}", found.version(), found.folder().display());
/// # Ok::<(), whizbang_postgres::embedded::EmbeddedError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installation {
    pub(super) folder: PathBuf,
    pub(super) version: String,
    number: (u32, u32),
}

impl Installation {
    /// The newest PostgreSQL of this machine, which is fetched when there is none.
    ///
    /// # Errors
    ///
    /// When there is none and it cannot be fetched; the error says what to type.
    pub fn find() -> Result<Self, EmbeddedError> {
        Machine::current()?.resolve(&Account::choose())
    }

    /// The newest PostgreSQL of this machine; nothing is fetched.
    ///
    /// # Errors
    ///
    /// When there is none; the error says what to type.
    pub fn find_offline() -> Result<Self, EmbeddedError> {
        Machine::current()?.offline().resolve(&Account::choose())
    }

    /// The version as PostgreSQL says it, such as `17.5`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The folder of the programs.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn major(&self) -> u32 {
        self.number.0
    }

    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// The newest PostgreSQL of some folders that `account` can run, or what is wrong with each.
pub(super) fn newest(folders: &[PathBuf], account: &Account) -> Result<Installation, Vec<String>> {
    let mut problems = Vec::new();
    folders
        .iter()
        .filter_map(|folder| match inspect(folder, account) {
            Ok(found) => found,
            Err(problem) => {
                problems.push(problem);
                None
            }
        })
        .max_by_key(|found| found.number)
        .ok_or(problems)
}

/// Every folder that packages of PostgreSQL are known to use, each once.
pub(super) fn usual_folders(path: &OsStr, home: Option<&Path>) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = env::split_paths(path).collect();
    // Debian, PGDG on Fedora, Alpine, Homebrew on both kinds of Mac and on Linux, Postgres.app.
    folders.extend(below("/usr/lib/postgresql", "", "bin"));
    folders.extend(below("/usr", "pgsql-", "bin"));
    folders.extend(below("/usr/libexec", "postgresql", ""));
    for cellar in [
        "/opt/homebrew/opt",
        "/usr/local/opt",
        "/home/linuxbrew/.linuxbrew/opt",
    ] {
        folders.extend(below(cellar, "postgresql", "bin"));
    }
    folders.extend(below(
        "/Applications/Postgres.app/Contents/Versions",
        "",
        "bin",
    ));
    folders.push("/usr/local/pgsql/bin".into());
    folders.push("/run/current-system/sw/bin".into());
    folders.extend(home.map(|home| home.join(".nix-profile/bin")));
    let mut seen = BTreeSet::new();
    folders.retain(|folder| {
        fs::canonicalize(folder.join("postgres")).is_ok_and(|program| seen.insert(program))
    });
    folders
}

/// The folders `parent/prefix*/child` that exist.
fn below(parent: &str, prefix: &str, child: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(parent) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|entry| starts_with(&entry.file_name(), prefix))
        .map(|entry| entry.path().join(child))
        .collect()
}

fn starts_with(name: &OsStr, prefix: &str) -> bool {
    name.to_string_lossy().starts_with(prefix)
}

/// Asks the programs of a folder for their version; `None` when it has none.
fn inspect(folder: &Path, account: &Account) -> Result<Option<Installation>, String> {
    let program = folder.join("postgres");
    if !program.is_file() {
        return Ok(None);
    }
    if !folder.join("initdb").is_file() {
        return Err(format!("{} has no initdb", folder.display()));
    }
    let output = account
        .apply(Command::new(&program).arg("--version").current_dir("/"))
        .output()
        .map_err(|error| format!("{} cannot be run: {error}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let Some((version, number)) = parse_version(&text) else {
        return Err(format!("{} gave no version", program.display()));
    };
    if number.0 < OLDEST {
        return Err(format!(
            "{} is version {version}, older than {OLDEST}",
            program.display()
        ));
    }
    Ok(Some(Installation {
        folder: real_folder(folder, &program),
        version,
        number,
    }))
}

/// Where links to the programs lead: processes that share a server may have different paths to it.
fn real_folder(folder: &Path, program: &Path) -> PathBuf {
    let real = fs::canonicalize(program).ok();
    let parent = real.as_deref().and_then(Path::parent);
    match parent.filter(|parent| parent.join("initdb").is_file()) {
        Some(parent) => parent.to_owned(),
        None => folder.to_owned(),
    }
}

/// Reads `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)` or `… 19beta1`.
fn parse_version(text: &str) -> Option<(String, (u32, u32))> {
    let version = text.split(") ").nth(1)?.split_whitespace().next()?;
    let mut parts = version.split(|c: char| !c.is_ascii_digit());
    let major = parts.next()?.parse().ok()?;
    let minor = match version.contains('.') {
        true => parts.next()?.parse().ok()?,
        false => 0,
    };
    Some((version.to_owned(), (major, minor)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_packagers_write_them() {
        let read = |text| parse_version(text).map(|(_, number)| number);
        let debian = "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n";
        assert_eq!(read(debian), Some((15, 18)));
        assert_eq!(read("postgres (PostgreSQL) 19beta1\n"), Some((19, 0)));
        assert_eq!(read("postgres: command failed\n"), None);
    }
}
