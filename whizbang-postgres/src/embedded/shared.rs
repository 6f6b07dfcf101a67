//! One server for all the test programs of a run.

use std::{
    env,
    fs::{self, File, OpenOptions},
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Mutex, OnceLock, PoisonError},
};

use rustix::fs::{CWD, Mode, mkfifoat};
use sqlx::{ConnectOptions, postgres::PgConnectOptions};

use super::{
    EmbeddedError,
    account::Account,
    error::Doing,
    installation::Installation,
    locations,
    machine::Machine,
    options,
    pointer::{self, HOLD, Hold, OPEN},
    supervisor::{Plan, Prepared},
    sweep::sweep,
    tree,
};

/// How long an unused server waits for the next test program.
const GRACE_SECONDS: u32 = 3;

/// The server that all processes of this user share, or the one `DATABASE_URL` names.
#[derive(Debug)]
pub struct Shared {
    options: PgConnectOptions,
    /// How databases are copied here, as a clause of `CREATE DATABASE`.
    strategy: &'static str,
    /// `None` for a server that is not ours.
    _hold: Option<Hold>,
}

/// The server to run tests on: that of `DATABASE_URL`, else a private one.
///
/// The private one is shared by all processes that ask for it. It is started by the first, stays
/// until the last has ended, and three seconds longer so that the next test program finds it.
///
/// ```
/// let server = whizbang_postgres::embedded::shared()?;
/// println!("tests run on {}", server.url("postgres"));
/// # Ok::<(), whizbang_postgres::embedded::EmbeddedError>(())
/// ```
///
/// # Errors
///
/// When `DATABASE_URL` is no URL of PostgreSQL, when no PostgreSQL is found, or when it does not
/// start. The next call tries again.
pub fn shared() -> Result<&'static Shared, EmbeddedError> {
    static SHARED: OnceLock<Shared> = OnceLock::new();
    static STARTING: Mutex<()> = Mutex::new(());
    if let Some(shared) = SHARED.get() {
        return Ok(shared);
    }
    let _one_at_a_time = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(shared) = SHARED.get() {
        return Ok(shared);
    }
    let found = Shared::find()?;
    Ok(SHARED.get_or_init(|| found))
}

impl Shared {
    /// How to connect to a database of this server.
    pub fn connect_options(&self, database: &str) -> PgConnectOptions {
        self.options.clone().database(database)
    }

    /// The same as a URL, to hand to other processes.
    pub fn url(&self, database: &str) -> String {
        self.connect_options(database).to_url_lossy().to_string()
    }

    pub(super) fn strategy(&self) -> &'static str {
        self.strategy
    }

    /// How to connect to the database from which others are created.
    pub(super) fn maintenance(&self) -> &PgConnectOptions {
        &self.options
    }

    fn find() -> Result<Self, EmbeddedError> {
        match env::var("DATABASE_URL") {
            Ok(url) if !url.is_empty() => Ok(Self {
                options: url
                    .parse::<PgConnectOptions>()
                    .doing("read DATABASE_URL, which should look like postgres://user@host/name")?,
                strategy: "",
                _hold: None,
            }),
            _ => Self::private(),
        }
    }

    fn private() -> Result<Self, EmbeddedError> {
        let account = Account::choose();
        let installation = Machine::current()?.resolve(&account)?;
        // Copying files costs half of writing them through the log, when there is no `fsync`; it
        // is what versions without the clause do.
        let strategy = match installation.major() {
            15.. => " STRATEGY FILE_COPY",
            _ => "",
        };
        let pointer = pointer_file(&installation)?;
        let lock = File::create(pointer.with_extension("lock")).doing("open the shared lock")?;
        lock.lock().doing("lock the shared server")?;
        let (sockets, hold) = match join(&pointer)? {
            Some(joined) => joined,
            None => start(&pointer, installation, account)?,
        };
        Ok(Self {
            options: options::private(&sockets, "postgres"),
            strategy,
            _hold: Some(hold),
        })
    }
}

/// The file that names the server of this user, this PostgreSQL and this version of us.
fn pointer_file(installation: &Installation) -> Result<PathBuf, EmbeddedError> {
    let folder = locations::cache()?.join("shared");
    fs::create_dir_all(&folder).doing("make the folder of the shared server")?;
    let kind = format!(
        "{}\n{}\n{}",
        installation.folder.display(),
        installation.version,
        env!("CARGO_PKG_VERSION")
    );
    Ok(folder.join(format!("{}.server", pointer::digest(&kind))))
}

fn join(pointer: &Path) -> Result<Option<(PathBuf, Hold)>, EmbeddedError> {
    let Some((folder, sockets)) = pointer::read(pointer) else {
        return Ok(None);
    };
    let hold = pointer::take_hold(&folder).doing("join the shared server")?;
    Ok(hold.map(|hold| (sockets, hold)))
}

fn start(
    pointer: &Path,
    installation: Installation,
    account: Account,
) -> Result<(PathBuf, Hold), EmbeddedError> {
    sweep(&account);
    let prepared = Prepared::new(&Plan::default(), installation, account)?;
    let pipe = prepared.folder().join(HOLD);
    mkfifoat(CWD, &pipe, Mode::RUSR | Mode::WUSR)
        .map_err(std::io::Error::from)
        .and_then(|()| tree::give(&pipe, account.owner()))
        .and_then(|()| File::create(prepared.folder().join(OPEN)).map(drop))
        .doing("make the pipe of the shared server")?;
    // Opening both ends at once does not wait for a partner; each end alone would.
    let both = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&pipe)
        .doing("open the pipe of the shared server")?;
    let reader = File::open(&pipe).doing("open the pipe of the shared server")?;
    let (home, mut supervisor) = prepared.launch(Stdio::from(reader), GRACE_SECONDS)?;
    home.wait_until_ready(&mut supervisor)?;
    let hold = pointer::take_hold(&home.folder).doing("join the shared server")?;
    drop(both);
    let Some(hold) = hold else {
        return Err(home.failure("ended at once"));
    };
    pointer::write(pointer, &home.folder, &home.sockets).doing("name the shared server")?;
    Ok((home.sockets, hold))
}
