//! The store: a pool, a schema, and how statements are run.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use chrono::{DateTime, Utc};
use sqlx::{
    AssertSqlSafe, PgPool, Postgres, Row,
    postgres::{PgArguments, PgPoolOptions, PgRow, types::PgInterval},
    query::Query,
};
use tokio::time::Instant;
use whizbang::store::StoreResult;

use crate::{calls::Calls, error::store_error, watermark::Watermarks};

/// The schema when nothing is said.
pub(crate) const DEFAULT_SCHEMA: &str = "public";

/// How a transaction of ours begins when a statement cannot be left to the session's defaults.
pub(crate) const BEGIN: &str =
    "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL synchronous_commit TO on";

/// Connections for heartbeats and renewals, apart from the pool so that busy handlers do not make
/// an instance look dead.
const CONTROL_CONNECTIONS: u32 = 1;

/// Starts a service on PostgreSQL.
///
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use whizbang_postgres::{Whizbang, migrate};
///
/// let pool = sqlx::PgPool::connect("postgres://localhost/shop").await?;
/// migrate(&pool).await?;
/// let app = Whizbang::builder(pool).service("orders").start().await?;
/// // … until the process is asked to stop
/// app.shutdown().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Whizbang;

impl Whizbang {
    /// A service whose tables are in schema `public` of the pool's database.
    pub fn builder(pool: PgPool) -> crate::Builder {
        Self::on(PgStore::new(pool))
    }

    /// A service on a store with settings of its own, such as another schema.
    pub fn on(store: PgStore) -> crate::Builder {
        whizbang::Builder::new(store)
    }
}

/// The tables and functions in one schema of a database. Cheap to clone.
#[derive(Debug, Clone)]
pub struct PgStore {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) pool: PgPool,
    /// Used by heartbeats and renewals only.
    pub(crate) control: PgPool,
    pub(crate) calls: Calls,
    pub(crate) schema: String,
    /// Behind a pooler that mixes up prepared statements.
    pub(crate) pooler: bool,
    /// The session's defaults do not suit us, so every statement gets a transaction of its own.
    pub(crate) explicit: AtomicBool,
    /// Due times up to which rows of each handler were claimed.
    pub(crate) claimed_up_to: Watermarks<String, DateTime<Utc>>,
    /// Sequences up to which rows of each destination were delivered.
    pub(crate) delivered_up_to: Watermarks<String, i64>,
    /// When rows were last looked for from the start.
    pub(crate) swept: Mutex<Option<Instant>>,
}

impl PgStore {
    /// The store in schema `public`.
    pub fn new(pool: PgPool) -> Self {
        Self::build(pool, DEFAULT_SCHEMA, false)
    }

    /// The store in another schema. Any name will do; it is always quoted.
    pub fn schema(self, schema: &str) -> Self {
        Self::build(self.inner.pool.clone(), schema, self.inner.pooler)
    }

    /// Set this behind a pooler in transaction mode that does not keep prepared statements apart
    /// (PgBouncer before 1.21, or without `max_prepared_statements`): every statement of ours is
    /// then unnamed and inside a transaction. It costs two round trips for each.
    pub fn pooler(self, pooler: bool) -> Self {
        Self::build(self.inner.pool.clone(), &self.inner.schema, pooler)
    }

    fn build(pool: PgPool, schema: &str, pooler: bool) -> Self {
        let control = PgPoolOptions::new()
            .max_connections(CONTROL_CONNECTIONS)
            .min_connections(0)
            .idle_timeout(Duration::from_secs(60))
            .acquire_timeout(Duration::from_secs(10))
            .connect_lazy_with((*pool.connect_options()).clone());
        Self {
            inner: Arc::new(Inner {
                calls: Calls::new(schema),
                schema: schema.to_owned(),
                pooler,
                explicit: AtomicBool::new(pooler),
                claimed_up_to: Watermarks::default(),
                delivered_up_to: Watermarks::default(),
                swept: Mutex::default(),
                pool,
                control,
            }),
        }
    }

    /// The pool it was made from.
    pub fn pool(&self) -> &PgPool {
        &self.inner.pool
    }

    /// The name of the schema.
    pub fn schema_name(&self) -> &str {
        &self.inner.schema
    }

    pub(crate) fn calls(&self) -> &Calls {
        &self.inner.calls
    }

    /// Runs one statement as a transaction and returns its rows.
    pub(crate) async fn rows(
        &self,
        doing: &'static str,
        query: Query<'_, Postgres, PgArguments>,
    ) -> StoreResult<Vec<PgRow>> {
        self.rows_on(&self.inner.pool, doing, query).await
    }

    /// The same on the connection that is kept for heartbeats and renewals.
    pub(crate) async fn control_rows(
        &self,
        doing: &'static str,
        query: Query<'_, Postgres, PgArguments>,
    ) -> StoreResult<Vec<PgRow>> {
        self.rows_on(&self.inner.control, doing, query).await
    }

    async fn rows_on(
        &self,
        pool: &PgPool,
        doing: &'static str,
        query: Query<'_, Postgres, PgArguments>,
    ) -> StoreResult<Vec<PgRow>> {
        let query = query.persistent(!self.inner.pooler);
        if !self.inner.explicit.load(Ordering::Relaxed) {
            return query.fetch_all(pool).await.map_err(store_error(doing));
        }
        let in_transaction = async {
            let mut transaction = pool.begin_with(AssertSqlSafe(BEGIN)).await?;
            let rows = query.fetch_all(&mut *transaction).await?;
            transaction.commit().await?;
            Ok(rows)
        };
        in_transaction.await.map_err(store_error(doing))
    }

    /// Runs one statement that answers one value.
    pub(crate) async fn value<T>(
        &self,
        doing: &'static str,
        query: Query<'_, Postgres, PgArguments>,
    ) -> StoreResult<T>
    where
        T: for<'r> sqlx::Decode<'r, Postgres> + sqlx::Type<Postgres>,
    {
        let rows = self.rows(doing, query).await?;
        let row = rows
            .first()
            .ok_or(sqlx::Error::RowNotFound)
            .map_err(store_error(doing))?;
        row.try_get(0).map_err(store_error(doing))
    }

    pub(crate) fn query(&self, call: &crate::calls::Call) -> Query<'static, Postgres, PgArguments> {
        sqlx::query(call.sql())
    }
}

/// A duration as PostgreSQL's interval; what is over 200 years is cut.
pub(crate) fn interval(duration: Duration) -> PgInterval {
    const LONGEST: i64 = 200 * 365 * 24 * 3600 * 1_000_000;
    let microseconds = i64::try_from(duration.as_micros()).unwrap_or(LONGEST);
    PgInterval {
        months: 0,
        days: 0,
        microseconds: microseconds.min(LONGEST),
    }
}
