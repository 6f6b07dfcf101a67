//! One test's database, with the schema migrated and tables for effects.

use std::{future::Future, time::Duration};

use sqlx::{PgPool, postgres::PgConnectOptions};
use uuid::Uuid;
use whizbang::{
    Backoff, Envelope, Message,
    transport::{InProcess, RawMessage},
};
use whizbang_postgres::{Builder, PgStore, Whizbang, embedded::TestDatabase};

use crate::Script;

/// How long a condition may take to come true before the test fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `condition` holds.
///
/// # Panics
/// When it does not come true in time.
pub async fn wait_until<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(waited.await.is_ok(), "did not come true in time: {what}");
}

/// Tables that the test handlers write to.
const EFFECTS: &str = "CREATE TABLE effects (id bigserial PRIMARY KEY, handler text, stream text, number bigint); CREATE TABLE payments (id bigserial PRIMARY KEY, cents bigint)";

/// A test's database and service.
pub struct World {
    /// Dropped with the world; `None` for a database that somebody else keeps.
    database: Option<TestDatabase>,
    options: PgConnectOptions,
    /// The pool that the service and the test share.
    pub pool: PgPool,
    /// What feeds the service.
    pub transport: InProcess,
    /// What the handlers do.
    pub script: Script,
}

impl World {
    /// A fresh database with our schema and the tables of the test handlers.
    ///
    /// # Panics
    /// When there is no database to be had.
    pub async fn new() -> Self {
        let script = whizbang_postgres::migration_script("public");
        let database = TestDatabase::from_template(&format!("{script}{EFFECTS}"), async |pool| {
            whizbang_postgres::migrate(pool).await?;
            sqlx::raw_sql(EFFECTS).execute(pool).await?;
            anyhow::Ok(())
        })
        .await
        .expect("a database for the test");
        Self {
            options: database.connect_options(),
            pool: database.pool(),
            database: Some(database),
            transport: InProcess::new("feed"),
            script: Script::default(),
        }
    }

    /// A world on a database of the test's own, which is given our schema and the tables of the
    /// test handlers.
    ///
    /// # Panics
    /// When the database cannot be reached.
    pub async fn on(options: PgConnectOptions) -> Self {
        let world = Self::joined(options);
        whizbang_postgres::migrate(&world.pool)
            .await
            .expect("a schema");
        sqlx::raw_sql(EFFECTS)
            .execute(&world.pool)
            .await
            .expect("tables for effects");
        world
    }

    /// The world of another process, on the database that it has made.
    pub fn joined(options: PgConnectOptions) -> Self {
        let pool = sqlx::postgres::PgPoolOptions::new()
            .max_connections(10)
            .connect_lazy_with(options.clone());
        Self {
            database: None,
            options,
            pool,
            transport: InProcess::new("feed"),
            script: Script::default(),
        }
    }

    /// The test's database.
    ///
    /// # Panics
    /// When it is kept by somebody else.
    pub fn database(&self) -> &TestDatabase {
        self.database.as_ref().expect("a database of this world")
    }

    /// How to connect, for pools with settings of their own.
    pub fn connect_options(&self) -> PgConnectOptions {
        self.options.clone()
    }

    /// A pool of its own on the test's database.
    ///
    /// # Panics
    /// When the database cannot be reached.
    pub async fn pool_of(&self, connections: u32) -> PgPool {
        sqlx::postgres::PgPoolOptions::new()
            .max_connections(connections)
            .connect_with(self.connect_options())
            .await
            .expect("a pool")
    }

    /// A service on the world's pool with short times and no handlers yet.
    pub fn service(&self) -> Builder {
        self.service_on(PgStore::new(self.pool.clone()))
    }

    /// The same on a store of the test's choice.
    pub fn service_on(&self, store: PgStore) -> Builder {
        Whizbang::on(store)
            .service("tests")
            .without_discovery()
            .state(self.script.clone())
            .intake(self.transport.clone())
            .configure(|config| {
                config.idle_poll = Duration::from_millis(50);
                config.backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(20));
                config.lease = Duration::from_secs(20);
                config.max_attempts = 3;
                config.maintenance = Duration::ZERO;
            })
    }

    /// Delivers a message through the transport under this id.
    pub fn deliver<M: Message>(&self, id: Uuid, message: &M) {
        let mut envelope = Envelope::new(message).expect("test messages encode");
        envelope.id = id;
        self.transport.deliver(RawMessage::from_envelope(&envelope));
    }

    /// Delivers a message with a fresh id.
    pub fn feed<M: Message>(&self, message: &M) -> Uuid {
        let id = Uuid::now_v7();
        self.deliver(id, message);
        id
    }

    /// One number from the database.
    pub async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql)
            .fetch_one(&self.pool)
            .await
            .expect("a count")
    }

    /// Effects of this handler for this number.
    pub async fn effects(&self, handler: &str, number: i64) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM effects WHERE handler = $1 AND number = $2")
            .bind(handler)
            .bind(number)
            .fetch_one(&self.pool)
            .await
            .expect("a count")
    }

    /// Whether inbox and outbox are empty and everything delivered is settled.
    pub async fn is_quiet(&self) -> bool {
        self.transport.waiting() == 0
            && self
                .count("SELECT (SELECT count(*) FROM wh_inbox) + (SELECT count(*) FROM wh_outbox)")
                .await
                == 0
    }

    /// Waits until nothing is left to do.
    pub async fn quiet(&self) {
        wait_until("inbox and outbox are empty", || self.is_quiet()).await;
    }

    /// Waits until there are this many dead letters.
    pub async fn dead_letters(&self, count: i64) {
        wait_until("dead letters", || async move {
            self.count("SELECT count(*) FROM wh_dead_letters").await == count
        })
        .await;
    }
}
