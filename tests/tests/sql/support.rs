//! A database, and the functions' calls with the arguments that most tests do not care about.

use std::{future::Future, time::Duration};

use sqlx::{Connection, PgConnection};
use tokio::task::JoinHandle;
use whizbang_postgres::embedded::TestDatabase;

pub(crate) use crate::calls::*;

pub(crate) type Outcome = anyhow::Result<()>;

/// How long a condition may take before the test fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// A fresh database with the schema in `public`.
pub(crate) struct Db {
    database: TestDatabase,
}

impl Db {
    pub(crate) async fn new() -> anyhow::Result<Self> {
        Self::filled("").await
    }

    /// A copy of a database that these statements have filled once.
    pub(crate) async fn filled(fill: &'static str) -> anyhow::Result<Self> {
        let script = whizbang_postgres::migration_script("public");
        let database = TestDatabase::from_template(&format!("{script}{fill}"), async |pool| {
            whizbang_postgres::migrate(pool).await?;
            sqlx::raw_sql(fill).execute(pool).await?;
            anyhow::Ok(())
        })
        .await?;
        Ok(Self { database })
    }

    /// A connection of its own.
    pub(crate) async fn connect(&self) -> anyhow::Result<PgConnection> {
        Ok(PgConnection::connect_with(&self.database.connect_options()).await?)
    }

    /// One value, on a connection from the pool.
    pub(crate) async fn value<T>(&self, sql: &'static str) -> anyhow::Result<T>
    where
        T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + Send + Unpin,
    {
        Ok(sqlx::query_scalar(sql)
            .fetch_one(&self.database.pool())
            .await?)
    }

    pub(crate) async fn run(&self, sql: &'static str) -> Outcome {
        sqlx::raw_sql(sql).execute(&self.database.pool()).await?;
        Ok(())
    }

    /// Lets a handler listen to the type "t" in a lane.
    pub(crate) async fn subscribe(&self, handler: &str, lane: &str) -> Outcome {
        self.subscribe_to(handler, lane, "t").await
    }

    pub(crate) async fn subscribe_to(&self, handler: &str, lane: &str, kind: &str) -> Outcome {
        sqlx::query(
            "INSERT INTO wh_subscriptions (handler_name, message_type, lane) VALUES ($1, $2, $3)",
        )
        .bind(handler)
        .bind(kind)
        .bind(lane)
        .execute(&self.database.pool())
        .await?;
        Ok(())
    }

    /// Waits until the session waits for a lock.
    pub(crate) async fn until_blocked(&self, pid: i32) -> Outcome {
        let pool = self.database.pool();
        until("the session is blocked", || async {
            sqlx::query_scalar(
                "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock'",
            )
            .bind(pid)
            .fetch_one(&pool)
            .await
            .is_ok_and(|count: i64| count == 1)
        })
        .await
    }
}

/// Waits until a condition holds.
pub(crate) async fn until<F: Future<Output = bool>>(
    what: &str,
    condition: impl Fn() -> F,
) -> Outcome {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    anyhow::ensure!(waited.await.is_ok(), "did not come true in time: {what}");
    Ok(())
}

/// Something that runs on its own connection meanwhile.
pub(crate) struct Meanwhile<T> {
    pub(crate) pid: i32,
    task: JoinHandle<anyhow::Result<T>>,
}

impl<T: Send + 'static> Meanwhile<T> {
    pub(crate) async fn start<F>(
        mut connection: PgConnection,
        work: impl FnOnce(PgConnection) -> F,
    ) -> anyhow::Result<Self>
    where
        F: Future<Output = anyhow::Result<T>> + Send + 'static,
    {
        let pid = pid(&mut connection).await?;
        let task = tokio::spawn(work(connection));
        Ok(Self { pid, task })
    }

    pub(crate) async fn end(self) -> anyhow::Result<T> {
        tokio::time::timeout(PATIENCE, self.task).await??
    }
}

pub(crate) async fn pid(connection: &mut PgConnection) -> anyhow::Result<i32> {
    Ok(sqlx::query_scalar("SELECT pg_backend_pid()")
        .fetch_one(connection)
        .await?)
}

pub(crate) async fn exec(connection: &mut PgConnection, sql: &'static str) -> Outcome {
    sqlx::raw_sql(sql).execute(connection).await?;
    Ok(())
}
