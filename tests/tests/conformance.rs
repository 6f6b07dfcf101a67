//! One suite for the contract of a store, run on PostgreSQL and on the store in memory.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgPool, postgres::types::PgInterval};
use whizbang::{
    BoxError,
    testing::conformance::{Harness, InMemory, checks},
};
use whizbang_postgres::{PgStore, embedded::TestDatabase};

/// How long one check may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What handlers of the checks write to.
const WRITTEN: &str =
    "CREATE TABLE written (row text NOT NULL); CREATE TABLE once (row text PRIMARY KEY)";

/// Every column that time passes for. Infinity stays what it is.
const TIMES: &[(&str, &[&str])] = &[
    ("wh_message_deduplication", &["first_seen_at"]),
    ("wh_inbox", &["due_at", "received_at", "started_at"]),
    ("wh_inbox_payloads", &["stored_at"]),
    ("wh_inbox_streams", &["due_at"]),
    (
        "wh_outbox",
        &["sent_at", "scheduled_at", "retry_at", "created_at"],
    ),
    ("wh_outbox_relays", &["leased_until"]),
    ("wh_dead_letters", &["received_at", "died_at"]),
    ("wh_command_results", &["created_at"]),
    ("wh_subscriptions", &["first_seen_at", "last_seen_at"]),
    ("wh_service_instances", &["started_at", "heartbeat_at"]),
    ("wh_settings", &["updated_at"]),
];

/// Each fresh store is a database of its own, kept until the harness is dropped.
#[derive(Default)]
struct OnPostgres {
    databases: Mutex<Vec<TestDatabase>>,
}

impl Harness for OnPostgres {
    type Store = PgStore;

    async fn fresh(&self) -> Result<PgStore, BoxError> {
        let script = whizbang_postgres::migration_script("public");
        let database = TestDatabase::from_template(&format!("{script}{WRITTEN}"), async |pool| {
            whizbang_postgres::migrate(pool).await?;
            sqlx::raw_sql(WRITTEN).execute(pool).await?;
            anyhow::Ok(())
        })
        .await?;
        let store = PgStore::new(database.pool());
        self.databases
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(database);
        Ok(store)
    }

    async fn now(&self, store: &PgStore) -> Result<DateTime<Utc>, BoxError> {
        Ok(sqlx::query_scalar("SELECT clock_timestamp()")
            .fetch_one(store.pool())
            .await?)
    }

    async fn pass(&self, store: &PgStore, time: Duration) -> Result<(), BoxError> {
        let time = PgInterval {
            microseconds: i64::try_from(time.as_micros())?,
            ..PgInterval::default()
        };
        for (table, columns) in TIMES {
            move_back(store.pool(), table, columns, time).await?;
        }
        Ok(())
    }

    async fn write(&self, connection: &mut PgConnection, row: &str) -> Result<(), BoxError> {
        sqlx::query("INSERT INTO written (row) VALUES ($1)")
            .bind(row)
            .execute(connection)
            .await?;
        Ok(())
    }

    async fn written(&self, store: &PgStore) -> Result<Vec<String>, BoxError> {
        Ok(sqlx::query_scalar("SELECT row FROM written")
            .fetch_all(store.pool())
            .await?)
    }

    async fn write_once(&self, connection: &mut PgConnection, row: &str) -> Result<(), BoxError> {
        sqlx::query("INSERT INTO once (row) VALUES ($1)")
            .bind(row)
            .execute(connection)
            .await?;
        Ok(())
    }

    async fn spoil(&self, connection: &mut PgConnection) -> Result<(), BoxError> {
        sqlx::query("SELECT 1 / 0").execute(connection).await?;
        Ok(())
    }

    async fn stray_commit(&self, connection: &mut PgConnection) -> Result<(), BoxError> {
        sqlx::raw_sql("COMMIT").execute(connection).await?;
        Ok(())
    }
}

async fn move_back(
    pool: &PgPool,
    table: &str,
    columns: &[&str],
    time: PgInterval,
) -> Result<(), sqlx::Error> {
    let moves: Vec<_> = columns
        .iter()
        .map(|column| format!("{column} = {column} - $1"))
        .collect();
    let statement = format!("UPDATE {table} SET {}", moves.join(", "));
    sqlx::query(sqlx::AssertSqlSafe(statement))
        .bind(time)
        .execute(pool)
        .await?;
    Ok(())
}

/// Runs every check on a harness of its own and says everything that is wrong.
async fn run_all<H: Harness>(harness: impl Fn() -> H) {
    let wanted = std::env::var("WHIZBANG_CHECK").unwrap_or_default();
    let mut violations = Vec::new();
    for check in checks::<H>() {
        if !check.name.contains(&wanted) {
            continue;
        }
        let harness = harness();
        match tokio::time::timeout(PATIENCE, check.run(&harness)).await {
            Ok(Ok(())) => {}
            Ok(Err(violation)) => violations.push(format!("{check:?}: {violation}")),
            Err(_elapsed) => violations.push(format!("{check:?}: it did not end")),
        }
    }
    let count = violations.len();
    assert!(count == 0, "{count} violations:\n{}", violations.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn postgresql_keeps_the_contract() {
    run_all(OnPostgres::default).await;
}

#[tokio::test]
async fn the_store_in_memory_keeps_the_contract() {
    run_all(InMemory::default).await;
}
