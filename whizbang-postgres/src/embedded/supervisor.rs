//! Preparing a server's folder, starting it under its supervisor, waiting until it is ready.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use tempfile::TempDir;

use super::{
    EmbeddedError,
    account::Account,
    error::{Doing, tail},
    folder::Folder,
    installation::Installation,
    locations, settings, template, tree,
};

use std::os::unix::process::CommandExt;

const SCRIPT: &str = include_str!("supervisor.sh");

/// How long PostgreSQL may take to be ready, which includes the recovery after a crash.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// The file that names the folder of the socket, for whoever has to clear up.
pub(super) const SOCKETS: &str = "sockets";

const LOOK_EVERY: Duration = Duration::from_millis(2);

/// What a server should be like.
#[derive(Debug, Clone, Default)]
pub(super) struct Plan {
    pub(super) durable: bool,
    pub(super) settings: Vec<(String, String)>,
}

/// A folder with all that the supervisor needs, removed again unless the supervisor starts.
pub(super) struct Prepared {
    folder: Folder,
    sockets: Option<TempDir>,
    account: Account,
    installation: Installation,
}

/// The folders of a server that runs.
#[derive(Debug, Clone)]
pub(super) struct Home {
    pub(super) folder: PathBuf,
    pub(super) sockets: PathBuf,
    /// How often PostgreSQL has been started, which tells its notes apart.
    pub(super) starts: u32,
}

impl Prepared {
    pub(super) fn new(
        plan: &Plan,
        installation: Installation,
        account: Account,
    ) -> Result<Self, EmbeddedError> {
        let folder = locations::server_folder(&account, plan.durable)?;
        let sockets = match locations::fits_socket(folder.path()) {
            true => None,
            false => Some(locations::socket_folder(&account)?),
        };
        let prepared = Self {
            folder,
            sockets,
            account,
            installation,
        };
        prepared.fill(plan)?;
        Ok(prepared)
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn sockets(&self) -> &Path {
        self.sockets
            .as_ref()
            .map_or(self.folder.path(), TempDir::path)
    }

    /// Writes the data, the configuration and the script, then hands the folder over.
    fn fill(&self, plan: &Plan) -> Result<(), EmbeddedError> {
        let owner = self.account.owner();
        let data = self.folder().join("data");
        template::copy_to(&data, &self.installation, &self.account)?;
        let sockets = self.sockets().to_string_lossy();
        let lines = settings::lines(plan.durable, &sockets, &plan.settings)?;
        append(&data.join("postgresql.conf"), &lines).doing("write postgresql.conf")?;
        fs::write(data.join("pg_hba.conf"), settings::ACCESS).doing("write pg_hba.conf")?;
        let notes = [("supervisor.sh", SCRIPT), ("log", ""), (SOCKETS, &sockets)];
        for (name, text) in notes {
            let file = self.folder().join(name);
            fs::write(&file, text)
                .and_then(|()| tree::give(&file, owner))
                .doing(format_args!("write {}", file.display()))?;
        }
        for folder in [self.sockets(), self.folder()] {
            tree::give(folder, owner).doing("hand over the server's folder")?;
        }
        Ok(())
    }

    /// Starts the supervisor, which from now on removes the folders.
    pub(super) fn launch(self, users: Stdio, grace: u32) -> Result<(Home, Child), EmbeddedError> {
        let home = Home {
            folder: self.folder().to_owned(),
            sockets: self.sockets().to_owned(),
            starts: 1,
        };
        let log = File::options()
            .append(true)
            .open(home.log())
            .doing("open the server's log")?;
        // The lock goes along as the supervisor's standard output, which it does not use.
        let lock = self.folder.lock().doing("pass on the server's lock")?;
        let mut command = Command::new("/bin/sh");
        command
            .arg(home.folder.join("supervisor.sh"))
            .arg(&home.folder)
            .arg(self.installation.program("postgres"))
            .arg(&home.sockets)
            .arg(grace.to_string())
            .current_dir(&home.folder)
            .stdin(users)
            .stdout(lock)
            .stderr(log)
            // The terminal's signals go to process groups; the supervisor outlives its users.
            .process_group(0);
        let child = self
            .account
            .apply(&mut command)
            .spawn()
            .doing("start /bin/sh as the server's supervisor")?;
        self.folder.hand_over();
        let _not_ours = self.sockets.map(TempDir::keep);
        Ok((home, child))
    }
}

impl Home {
    pub(super) fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    pub(super) fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn note(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.{}", self.starts))
    }

    /// The process id of PostgreSQL while it runs.
    pub(super) fn pid(&self) -> Option<u32> {
        if self.exited() {
            return None;
        }
        let text = fs::read_to_string(self.note("pid")).ok()?;
        text.trim().parse().ok()
    }

    pub(super) fn exited(&self) -> bool {
        self.note("exited").exists()
    }

    /// Waits until PostgreSQL takes connections, or says why it does not.
    pub(super) fn wait_until_ready(&self, supervisor: &mut Child) -> Result<(), EmbeddedError> {
        let deadline = Instant::now() + READY_WITHIN;
        while !self.is_ready() {
            let ended = supervisor.try_wait().doing("look after the supervisor")?;
            if self.exited() || ended.is_some() {
                return Err(self.failure("ended at once"));
            }
            if Instant::now() > deadline {
                return Err(self.failure("was not ready in 60 s"));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// PostgreSQL writes its state to the eighth line of its process id file.
    fn is_ready(&self) -> bool {
        let Ok(text) = fs::read_to_string(self.data().join("postmaster.pid")) else {
            return false;
        };
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        // The file of a killed predecessor also says "ready", under another process id.
        let ours = self.pid().map(|pid| pid.to_string());
        let state = lines.get(7).copied();
        lines.first().copied() == ours.as_deref() && matches!(state, Some("ready" | "standby"))
    }

    /// An error with the log, which is kept since the folder will be removed.
    pub(super) fn failure(&self, problem: &str) -> EmbeddedError {
        let text = match fs::read(self.log()) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) => format!("the log could not be read: {error}"),
        };
        let log = keep_log(&text).unwrap_or_else(|| self.log());
        EmbeddedError::Start {
            problem: problem.to_owned(),
            log,
            tail: tail(&text, 20),
        }
    }
}

fn append(file: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    File::options()
        .append(true)
        .open(file)?
        .write_all(text.as_bytes())
}

/// Puts the log of a server that failed into the cache folder.
fn keep_log(text: &str) -> Option<PathBuf> {
    let file = locations::cache().ok()?.join("failed-start.log");
    fs::write(&file, text).ok()?;
    Some(file)
}
