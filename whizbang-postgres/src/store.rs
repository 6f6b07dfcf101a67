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
    AssertSqlSafe, Connection, PgPool, Postgres, Row,
    pool::PoolConnection,
    postgres::{PgArguments, PgRow, types::PgInterval},
    query::Query,
};
use tokio::time::Instant;
use whizbang::store::StoreResult;

use crate::{
    calls::Calls,
    control::Control,
    error::{begin_error, store_error},
    watermark::Watermarks,
};

/// The schema when nothing is said.
pub(crate) const DEFAULT_SCHEMA: &str = "public";

/// How a transaction of ours begins when a statement cannot be left to the session's defaults.
pub(crate) const BEGIN: &str =
    "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL synchronous_commit TO on";

/// How long PostgreSQL may take to answer a statement of ours when nothing is said.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// The same for heartbeats and renewals: two of them must fit into a lease, and one of them into
/// the time after which peers take an instance for dead.
const CONTROL_WITHIN: Duration = Duration::from_secs(10);

/// The same for a round of maintenance, which looks at many rows.
pub(crate) const MAINTENANCE_WITHIN: Duration = Duration::from_secs(600);

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
    pub(crate) control: Control,
    pub(crate) calls: Calls,
    pub(crate) schema: String,
    /// Behind a pooler that mixes up prepared statements.
    pub(crate) pooler: bool,
    /// How long an answer may take before its connection counts as broken.
    pub(crate) answer_within: Duration,
    /// The session's defaults do not suit us, so every statement gets a transaction of its own.
    pub(crate) explicit: AtomicBool,
    /// Due times up to which rows of each handler, without and with a stream, were claimed.
    pub(crate) claimed_up_to: Watermarks<(String, bool), DateTime<Utc>>,
    /// Sequences up to which rows of each destination were delivered.
    pub(crate) delivered_up_to: Watermarks<String, i64>,
    /// When rows were last looked for from the start.
    pub(crate) swept: Mutex<Option<Instant>>,
}

impl PgStore {
    /// The store in schema `public`.
    pub fn new(pool: PgPool) -> Self {
        Self::build(pool, DEFAULT_SCHEMA, false, ANSWER_WITHIN)
    }

    /// The store in another schema. Any name will do; it is always quoted.
    pub fn schema(self, schema: &str) -> Self {
        let inner = &self.inner;
        Self::build(
            inner.pool.clone(),
            schema,
            inner.pooler,
            inner.answer_within,
        )
    }

    /// Set this behind a pooler in transaction mode that does not keep prepared statements apart
    /// (PgBouncer before 1.21, or without `max_prepared_statements`): every statement of ours is
    /// then unnamed and inside a transaction. It costs two round trips for each.
    pub fn pooler(self, pooler: bool) -> Self {
        let inner = &self.inner;
        Self::build(
            inner.pool.clone(),
            &inner.schema,
            pooler,
            inner.answer_within,
        )
    }

    /// How long PostgreSQL may take to answer a statement of the framework before the connection
    /// counts as broken and is closed: a network that swallows packets says nothing, ever. The
    /// default is 30 s. Your own statements are bounded by the handler's timeout.
    pub fn answer_within(self, longest: Duration) -> Self {
        let inner = &self.inner;
        Self::build(inner.pool.clone(), &inner.schema, inner.pooler, longest)
    }

    fn build(pool: PgPool, schema: &str, pooler: bool, answer_within: Duration) -> Self {
        let control = Control::new(pool.clone());
        Self {
            inner: Arc::new(Inner {
                calls: Calls::new(schema),
                schema: schema.to_owned(),
                pooler,
                answer_within,
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
        self.rows_within(self.inner.answer_within, doing, query)
            .await
    }

    /// The same with a time of its own for the answer.
    pub(crate) async fn rows_within(
        &self,
        within: Duration,
        doing: &'static str,
        query: Query<'_, Postgres, PgArguments>,
    ) -> StoreResult<Vec<PgRow>> {
        let query = query.persistent(!self.inner.pooler);
        let explicit = self.inner.explicit.load(Ordering::Relaxed);
        let mut busy = Busy::new(
            self.inner
                .pool
                .acquire()
                .await
                .map_err(store_error(doing))?,
        );
        let answer = async {
            let connection = busy.connection()?;
            if !explicit {
                return query.fetch_all(&mut **connection).await;
            }
            let begun = connection.begin_with(AssertSqlSafe(BEGIN)).await;
            let mut transaction = begun.map_err(begin_error)?;
            let rows = query.fetch_all(&mut *transaction).await?;
            transaction.commit().await?;
            Ok(rows)
        };
        let answer = tokio::time::timeout(within, answer).await;
        let rows = answer.map_err(|_elapsed| store_error(doing)(no_answer(within)))?;
        busy.at_rest();
        rows.map_err(store_error(doing))
    }

    /// The same on the connection that is kept for heartbeats and renewals.
    pub(crate) async fn control_rows(
        &self,
        doing: &'static str,
        query: Query<'_, Postgres, PgArguments>,
    ) -> StoreResult<Vec<PgRow>> {
        let query = query.persistent(!self.inner.pooler);
        let within = self.inner.answer_within.min(CONTROL_WITHIN);
        let explicit = self.inner.explicit.load(Ordering::Relaxed);
        let rows = self.inner.control.rows(within, explicit, query).await;
        rows.map_err(store_error(doing))
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

/// A connection with a statement under way. Dropped like this it is closed: going back to the pool
/// it would wait for the answer, and keep its place there for as long.
struct Busy(Option<PoolConnection<Postgres>>);

impl Busy {
    fn new(connection: PoolConnection<Postgres>) -> Self {
        Self(Some(connection))
    }

    fn connection(&mut self) -> Result<&mut PoolConnection<Postgres>, sqlx::Error> {
        self.0.as_mut().ok_or(sqlx::Error::WorkerCrashed)
    }

    /// The answer is here: the connection goes back to the pool.
    fn at_rest(&mut self) {
        drop(self.0.take());
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        drop(self.0.take().map(PoolConnection::detach));
    }
}

/// What a network that swallows everything looks like after a while.
pub(crate) fn no_answer(within: Duration) -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(
        std::io::ErrorKind::TimedOut,
        format!("no answer within {within:?}, so the connection was closed"),
    ))
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
