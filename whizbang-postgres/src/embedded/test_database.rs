//! A fresh database for one test.

use std::error::Error;

use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, PgConnection, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};

use super::{
    EmbeddedError, Shared,
    error::Doing,
    janitor::{self, Janitor, drop_database},
    options::quoted,
    pointer, shared,
};

/// Connections of the pool that a test gets; the private server takes 200 in all.
const POOL_SIZE: u32 = 10;

/// PostgreSQL's code for a database that does not exist.
const NO_SUCH_DATABASE: &str = "3D000";

/// The first half of the advisory locks under which templates are made.
const TEMPLATE_CLASS: i32 = 0x7762_7470;

/// A database of its own for one test, on the [shared server](shared).
///
/// It is dropped soon after the value is, whoever is still connected; when the process is killed
/// before that, the next one that makes a test database drops it.
#[derive(Debug)]
pub struct TestDatabase {
    name: String,
    options: PgConnectOptions,
    pool: PgPool,
    server: &'static Shared,
    janitor: &'static Janitor,
    closed: bool,
}

/// An empty database for one test.
///
/// ```
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let database = whizbang_postgres::embedded::test_database().await?;
/// sqlx::query("CREATE TABLE t (a int)").execute(&database.pool()).await?;
/// # Ok(())
/// # }
/// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
/// ```
///
/// # Errors
///
/// When there is no server (see [`shared`]) or when it may not create databases.
pub async fn test_database() -> Result<TestDatabase, EmbeddedError> {
    let server = find_server().await?;
    let janitor = janitor::janitor(server.maintenance()).await?;
    let name = janitor.name();
    let doing = "create a test database";
    let mut admin = connect(server).await?;
    create(&mut admin, server, &name, "template1")
        .await
        .doing(doing)?;
    admin.close().await.doing(doing)?;
    Ok(TestDatabase::new(name, server, janitor))
}

impl TestDatabase {
    /// A database that starts as a copy of one that `prepare` has filled.
    ///
    /// `prepare` runs once for a `key` and a server, and all further databases are copies, so a
    /// test does not pay for the migrations. The key stands for the content: put a version or a
    /// digest of what `prepare` does into it. `prepare` must leave no connection of its own open.
    ///
    /// ```
    /// use whizbang_postgres::embedded::TestDatabase;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let database = TestDatabase::from_template("shop 1", async |pool| {
    ///     sqlx::query("CREATE TABLE orders (id uuid PRIMARY KEY)").execute(pool).await?;
    ///     Ok::<_, sqlx::Error>(())
    /// })
    /// .await?;
    /// sqlx::query("SELECT id FROM orders").fetch_all(&database.pool()).await?;
    /// # Ok(())
    /// # }
    /// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`test_database`], and when `prepare` fails.
    pub async fn from_template<E>(
        key: &str,
        prepare: impl AsyncFnOnce(&PgPool) -> Result<(), E>,
    ) -> Result<Self, EmbeddedError>
    where
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        let server = find_server().await?;
        let janitor = janitor::janitor(server.maintenance()).await?;
        let digest = pointer::digest(key);
        let template = format!("whizbang_template_{digest}");
        let name = janitor.name();
        let doing = format!("create a test database from the template `{key}`");
        let mut admin = connect(server).await?;
        match create(&mut admin, server, &name, &template).await {
            Err(error) if is_missing(&error) => {
                lock_template(&mut admin, &digest).await.doing(&doing)?;
                // Whoever held the lock before us may have made it.
                match create(&mut admin, server, &name, &template).await {
                    Err(error) if is_missing(&error) => {
                        let fresh = Self::make(&mut admin, server, janitor).await?;
                        fresh.fill(key, prepare).await?;
                        fresh
                            .become_template(&mut admin, &template)
                            .await
                            .doing(&doing)?;
                        create(&mut admin, server, &name, &template)
                            .await
                            .doing(&doing)?;
                    }
                    other => other.doing(&doing)?,
                }
            }
            other => other.doing(&doing)?,
        }
        admin.close().await.doing(&doing)?;
        Ok(Self::new(name, server, janitor))
    }

    async fn make(
        admin: &mut PgConnection,
        server: &'static Shared,
        janitor: &'static Janitor,
    ) -> Result<Self, EmbeddedError> {
        let name = janitor.name();
        create(admin, server, &name, "template1")
            .await
            .doing("create a template database")?;
        Ok(Self::new(name, server, janitor))
    }

    async fn fill<E>(
        &self,
        key: &str,
        prepare: impl AsyncFnOnce(&PgPool) -> Result<(), E>,
    ) -> Result<(), EmbeddedError>
    where
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        let filled = prepare(&self.pool).await;
        self.pool.close().await;
        filled.map_err(|error| EmbeddedError::Prepare {
            key: key.to_owned(),
            source: error.into(),
        })
    }

    /// Takes the name of the template, under which every process finds it.
    async fn become_template(
        mut self,
        admin: &mut PgConnection,
        template: &str,
    ) -> Result<(), sqlx::Error> {
        let (old, new) = (quoted(&self.name), quoted(template));
        let rename = format!("ALTER DATABASE {old} RENAME TO {new}");
        sqlx::raw_sql(AssertSqlSafe(rename))
            .execute(&mut *admin)
            .await?;
        self.closed = true;
        // The janitor drops templates by this date, or a server of one's own would collect them.
        #[expect(
            clippy::disallowed_methods,
            reason = "a date of this machine, for its janitor"
        )]
        let today = chrono::Utc::now().date_naive();
        let comment = format!("COMMENT ON DATABASE {new} IS 'whizbang template of {today}'");
        sqlx::raw_sql(AssertSqlSafe(comment)).execute(admin).await?;
        Ok(())
    }

    fn new(name: String, server: &'static Shared, janitor: &'static Janitor) -> Self {
        let options = server.connect_options(&name);
        let pool = PgPoolOptions::new()
            .max_connections(POOL_SIZE)
            .connect_lazy_with(options.clone());
        Self {
            name,
            options,
            pool,
            server,
            janitor,
            closed: false,
        }
    }

    /// A pool of up to ten connections; all calls give the same one.
    pub fn pool(&self) -> PgPool {
        self.pool.clone()
    }

    /// How to connect, for a pool or a connection of one's own.
    pub fn connect_options(&self) -> PgConnectOptions {
        self.options.clone()
    }

    /// The same as a URL, to hand to other processes.
    pub fn url(&self) -> String {
        self.options.to_url_lossy().to_string()
    }

    /// The name of the database.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Drops the database now and waits until it is gone.
    ///
    /// # Errors
    ///
    /// When the server does not drop it.
    pub async fn close(mut self) -> Result<(), EmbeddedError> {
        self.pool.close().await;
        let mut admin = connect(self.server).await?;
        drop_database(&mut admin, &self.name)
            .await
            .doing("drop a test database")?;
        self.closed = true;
        admin.close().await.doing("close the connection")
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        if !self.closed {
            self.janitor.discard(std::mem::take(&mut self.name));
        }
    }
}

/// Starting a server blocks, so it must not happen on a thread of the runtime.
async fn find_server() -> Result<&'static Shared, EmbeddedError> {
    match tokio::task::spawn_blocking(shared).await {
        Ok(found) => found,
        Err(error) => Err(std::io::Error::other(error)).doing("find a server for the tests"),
    }
}

async fn connect(server: &Shared) -> Result<PgConnection, EmbeddedError> {
    PgConnection::connect_with(server.maintenance())
        .await
        .doing("connect to the server that test databases are created on")
}

async fn create(
    admin: &mut PgConnection,
    server: &Shared,
    name: &str,
    from: &str,
) -> Result<(), sqlx::Error> {
    let (name, from, how) = (quoted(name), quoted(from), server.strategy());
    let statement = format!("CREATE DATABASE {name} TEMPLATE {from}{how}");
    sqlx::raw_sql(AssertSqlSafe(statement))
        .execute(admin)
        .await?;
    Ok(())
}

fn is_missing(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .and_then(|error| error.code())
        .is_some_and(|code| code == NO_SUCH_DATABASE)
}

/// Waits until no other process makes the same template; closing the connection unlocks.
async fn lock_template(admin: &mut PgConnection, digest: &str) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT pg_catalog.pg_advisory_lock($1, pg_catalog.hashtext($2))")
        .bind(TEMPLATE_CLASS)
        .bind(digest)
        .execute(admin)
        .await?;
    Ok(())
}
