//! A private server of one's own.

use std::{
    io::Write,
    path::Path,
    process::{Child, ChildStdin, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal};
use sqlx::{ConnectOptions, Connection, PgConnection, postgres::PgConnectOptions};

use super::{
    EmbeddedError,
    account::Account,
    error::Doing,
    machine::Machine,
    options, orphans,
    supervisor::{Home, Plan, Prepared},
    sweep::sweep,
};

/// An immediate shutdown takes milliseconds; PostgreSQL kills what lingers after five seconds.
const STOP_WITHIN: Duration = Duration::from_secs(15);

/// A PostgreSQL server that belongs to this value.
///
/// It ends, and its data is removed, when the value is dropped or when the process ends, be it by
/// a panic, by `Ctrl-C` or by `kill -9`.
///
/// ```
/// use whizbang_postgres::embedded::Server;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let server = Server::start()?;
/// server.create_database("shop").await?;
/// let pool = sqlx::PgPool::connect_with(server.connect_options("shop")).await?;
/// sqlx::query("CREATE TABLE orders (id uuid PRIMARY KEY)").execute(&pool).await?;
/// server.stop()?;
/// # Ok(())
/// # }
/// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
/// ```
///
/// Starting and stopping block the thread, for about a tenth of a second.
#[derive(Debug)]
pub struct Server {
    home: Home,
    supervisor: Child,
    /// The supervisor reads this pipe; its end is the end of the server.
    commands: Option<ChildStdin>,
}

/// Says what a private server should be like.
///
/// ```
/// use whizbang_postgres::embedded::Server;
///
/// let server = Server::builder()
///     .durable(true)
///     .setting("deadlock_timeout", "100ms")
///     .start()?;
/// # drop(server);
/// # Ok::<(), whizbang_postgres::embedded::EmbeddedError>(())
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "a builder does nothing until `start` is called"]
pub struct ServerBuilder {
    plan: Plan,
}

impl ServerBuilder {
    /// Keeps the data on disk and waits for it, as a real server does; the default is a server in
    /// memory where there is room, without `fsync`.
    pub fn durable(mut self, durable: bool) -> Self {
        self.plan.durable = durable;
        self
    }

    /// Adds a line to `postgresql.conf`; it wins over what we set ourselves.
    pub fn setting(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.plan.settings.push((name.into(), value.to_string()));
        self
    }

    /// Starts the server and waits until it takes connections.
    ///
    /// # Errors
    ///
    /// When no PostgreSQL is found, or when it does not start; the error holds the end of its log.
    pub fn start(self) -> Result<Server, EmbeddedError> {
        let account = Account::choose();
        sweep(&account);
        let installation = Machine::current()?.resolve(&account)?;
        let prepared = Prepared::new(&self.plan, installation, account)?;
        let (home, mut supervisor) = prepared.launch(Stdio::piped(), 0)?;
        let commands = supervisor.stdin.take();
        let mut server = Server {
            home,
            supervisor,
            commands,
        };
        server.home.wait_until_ready(&mut server.supervisor)?;
        Ok(server)
    }
}

impl Server {
    /// Starts a server in memory, for tests.
    ///
    /// # Errors
    ///
    /// See [`ServerBuilder::start`].
    pub fn start() -> Result<Self, EmbeddedError> {
        Self::builder().start()
    }

    /// Starts from the default: a server in memory, for tests.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// How to connect to a database of this server as its superuser.
    pub fn connect_options(&self, database: &str) -> PgConnectOptions {
        options::private(&self.home.sockets, database)
    }

    /// The same as a URL, to hand to other processes.
    pub fn url(&self, database: &str) -> String {
        self.connect_options(database).to_url_lossy().to_string()
    }

    /// Creates an empty database.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached or has a database of this name.
    pub async fn create_database(&self, name: &str) -> Result<(), EmbeddedError> {
        let doing = format!("create the database `{name}`");
        let mut connection = PgConnection::connect_with(&self.connect_options("postgres"))
            .await
            .doing(&doing)?;
        let statement = format!("CREATE DATABASE {}", options::quoted(name));
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement))
            .execute(&mut connection)
            .await
            .doing(&doing)?;
        connection.close().await.doing(&doing)
    }

    /// The folder of the server, with its data and its `log`.
    pub fn folder(&self) -> &Path {
        &self.home.folder
    }

    /// The process id of PostgreSQL while it runs.
    pub fn process_id(&self) -> Option<u32> {
        self.home.pid()
    }

    /// Kills all processes of PostgreSQL with `SIGKILL`, as a power cut would; the data stays.
    ///
    /// # Errors
    ///
    /// When the processes cannot be killed.
    pub fn kill(&mut self) -> Result<(), EmbeddedError> {
        if let Some(pid) = self.postgres() {
            orphans::signal(pid, Signal::KILL)?;
        }
        orphans::end(&self.home.data())?;
        self.wait_until_exited()
    }

    /// Ends PostgreSQL if it runs, as an administrator would, and starts it again on its data.
    ///
    /// Connections break; new ones wait for the recovery when the server had been killed.
    ///
    /// # Errors
    ///
    /// When PostgreSQL does not end or does not start again.
    pub fn restart(&mut self) -> Result<(), EmbeddedError> {
        if let Some(pid) = self.postgres() {
            // A fast shutdown: sessions are ended, the data is written.
            orphans::signal(pid, Signal::INT)?;
            self.wait_until_exited()?;
        }
        self.home.starts += 1;
        if let Some(commands) = &mut self.commands {
            commands.write_all(b"start\n").doing("ask for a restart")?;
        }
        self.home.wait_until_ready(&mut self.supervisor)
    }

    /// Ends the server and removes its data.
    ///
    /// Dropping the value does the same, but keeps an error to itself.
    ///
    /// # Errors
    ///
    /// When the server does not end in time.
    pub fn stop(mut self) -> Result<(), EmbeddedError> {
        self.end()
    }

    fn postgres(&self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.home.pid()?).ok()?)
    }

    fn wait_until_exited(&mut self) -> Result<(), EmbeddedError> {
        self.wait_for(|server| Ok(server.home.exited()))
    }

    fn end(&mut self) -> Result<(), EmbeddedError> {
        if self.commands.take().is_none() {
            return Ok(());
        }
        self.wait_for(|server| {
            let status = server.supervisor.try_wait().doing("await the supervisor")?;
            Ok(status.is_some())
        })
    }

    fn wait_for(
        &mut self,
        mut done: impl FnMut(&mut Self) -> Result<bool, EmbeddedError>,
    ) -> Result<(), EmbeddedError> {
        let deadline = Instant::now() + STOP_WITHIN;
        while !done(self)? {
            if Instant::now() > deadline {
                return Err(EmbeddedError::Stop {
                    directory: self.home.folder.clone(),
                    seconds: STOP_WITHIN.as_secs(),
                    pid: self.supervisor.id(),
                });
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!(%error, "a private server is still there");
        }
    }
}
