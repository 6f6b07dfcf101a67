//! The thread that drops test databases, those of this process and those of dead ones.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use sqlx::{AssertSqlSafe, Connection, PgConnection, postgres::PgConnectOptions};
use tokio::sync::{OnceCell, mpsc, oneshot};
use uuid::Uuid;

use super::{EmbeddedError, error::Doing, options::quoted};

/// The first half of the advisory locks by which processes show that they live.
const LOCK_CLASS: i32 = 0x7762_6a6e;

/// Names this process's databases and takes them back.
#[derive(Debug)]
pub(super) struct Janitor {
    /// The second half of this process's advisory lock.
    number: i32,
    next: AtomicU32,
    unwanted: mpsc::UnboundedSender<String>,
}

/// The janitor of this process.
pub(super) async fn janitor(server: &PgConnectOptions) -> Result<&'static Janitor, EmbeddedError> {
    static JANITOR: OnceCell<Janitor> = OnceCell::const_new();
    JANITOR.get_or_try_init(|| Janitor::start(server)).await
}

impl Janitor {
    async fn start(server: &PgConnectOptions) -> Result<Self, EmbeddedError> {
        // Thirty random bits: positive, so that the number reads the same in every place.
        let number = (Uuid::new_v4().as_u128() & 0x3fff_ffff) as i32;
        let (unwanted, names) = mpsc::unbounded_channel();
        let (ready, is_ready) = oneshot::channel();
        let server = server.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .doing("start the runtime of the janitor")?;
        thread::Builder::new()
            .name("whizbang-janitor".to_owned())
            .spawn(move || runtime.block_on(run(server, number, ready, names)))
            .doing("start the thread of the janitor")?;
        is_ready.await.map_err(|_| EmbeddedError::Janitor)??;
        Ok(Self {
            number,
            next: AtomicU32::new(0),
            unwanted,
        })
    }

    /// A database name that nobody else uses.
    pub(super) fn name(&self) -> String {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        format!("whizbang_test_{}_{next}", self.number)
    }

    /// Has a database dropped, later.
    pub(super) fn discard(&self, name: String) {
        if self.unwanted.send(name).is_err() {
            tracing::debug!("the janitor has ended, so another process will drop the database");
        }
    }
}

async fn run(
    server: PgConnectOptions,
    number: i32,
    ready: oneshot::Sender<Result<(), EmbeddedError>>,
    mut names: mpsc::UnboundedReceiver<String>,
) {
    let (mut connection, answer) = match open(&server, number).await {
        Ok(connection) => (Some(connection), Ok(())),
        Err(error) => (None, Err(error)),
    };
    let awaited = ready.send(answer).is_ok();
    let Some(connection) = connection.as_mut().filter(|_| awaited) else {
        return;
    };
    if let Err(error) = drop_abandoned(connection).await {
        tracing::warn!(%error, "could not drop the test databases of processes that have ended");
    }
    while let Some(name) = names.recv().await {
        if let Err(error) = drop_database(connection, &name).await {
            tracing::warn!(%error, name, "could not drop a test database");
        }
    }
}

/// Connects, and shows that this process lives for as long as the connection does.
async fn open(server: &PgConnectOptions, number: i32) -> Result<PgConnection, EmbeddedError> {
    let doing = "connect to the server that test databases are created on";
    let mut connection = PgConnection::connect_with(server).await.doing(doing)?;
    sqlx::query("SELECT pg_catalog.pg_advisory_lock($1, $2)")
        .bind(LOCK_CLASS)
        .bind(number)
        .execute(&mut connection)
        .await
        .doing("lock this process's number")?;
    Ok(connection)
}

async fn drop_abandoned(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let abandoned: Vec<String> = sqlx::query_scalar(include_str!("sql/abandoned_databases.sql"))
        .bind(LOCK_CLASS)
        .fetch_all(&mut *connection)
        .await?;
    for name in abandoned {
        drop_database(connection, &name).await?;
    }
    Ok(())
}

/// Drops a database with whoever is still connected to it.
pub(super) async fn drop_database(
    connection: &mut PgConnection,
    name: &str,
) -> Result<(), sqlx::Error> {
    let statement = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", quoted(name));
    sqlx::raw_sql(AssertSqlSafe(statement))
        .execute(connection)
        .await?;
    Ok(())
}
