//! Commands against the transaction they are about, as a web service would write it: each takes a
//! connection from the pool, inserts a row and commits.

use std::sync::Arc;

use anyhow::Result;
use sqlx::PgPool;
use tokio::{task::JoinSet, time::Instant};
use uuid::Uuid;
use whizbang_postgres::Dispatcher;

use crate::{
    handlers::DoOnce,
    measured::{Bench, TEXT, rate},
    report::Report,
};

const INSERT: &str = "INSERT INTO effects (text) VALUES ($1)";
const READ: &str =
    "SELECT result::text FROM wh_command_results WHERE scope = 'bench.do_once' AND key = $1";

const KEY: &str = "INSERT INTO floor_commands (scope, key, fingerprint, method_version) VALUES ('bench.do_once', $1, sha256($1::bytea), '1') ON CONFLICT DO NOTHING";
const ANSWER: &str = "UPDATE floor_commands SET result = 'null', completed = true WHERE scope = 'bench.do_once' AND key = $1";

fn command(key: Uuid) -> DoOnce {
    DoOnce {
        key,
        text: TEXT.to_owned(),
    }
}

async fn bare_insert(pool: PgPool) -> Result<()> {
    let mut tx = pool.begin().await?;
    sqlx::query(INSERT).bind(TEXT).execute(&mut *tx).await?;
    Ok(tx.commit().await?)
}

/// What a careful service would write by hand: the key, the work, the answer.
async fn by_hand(pool: PgPool, key: Uuid) -> Result<()> {
    let mut tx = pool.begin().await?;
    let begin = sqlx::query(KEY).bind(key.to_string());
    begin.execute(&mut *tx).await?;
    sqlx::query(INSERT).bind(TEXT).execute(&mut *tx).await?;
    let finish = sqlx::query(ANSWER).bind(key.to_string());
    finish.execute(&mut *tx).await?;
    Ok(tx.commit().await?)
}

async fn bare_read(pool: PgPool, key: Uuid) -> Result<()> {
    let mut tx = pool.begin().await?;
    let read = sqlx::query(READ).bind(key.to_string());
    read.fetch_one(&mut *tx).await?;
    Ok(tx.rollback().await?)
}

async fn execute(dispatcher: Dispatcher, key: Uuid) -> Result<()> {
    Ok(dispatcher.execute(command(key)).await?)
}

async fn execute_in(pool: PgPool, dispatcher: Dispatcher, key: Uuid) -> Result<()> {
    let mut tx = pool.begin().await?;
    dispatcher.execute_in(&mut tx, command(key)).await?;
    Ok(tx.commit().await?)
}

impl Bench {
    pub(crate) async fn commands(&self, report: &mut Report) -> Result<()> {
        let (app, _, _arrivals) = self.quiet_service().await?;
        let (pool, dispatcher) = (&self.pool, app.dispatcher());
        self.reset_commands().await?;
        let insert = self.crowd(None, |_| bare_insert(pool.clone())).await?;
        self.reset_commands().await?;
        let ours = self.crowd(None, |key| execute(dispatcher.clone(), key));
        let ours = ours.await?;
        report.pair("execute a command", insert, ours);
        self.reset_commands().await?;
        let hand = self.crowd(None, |key| by_hand(pool.clone(), key)).await?;
        report.pair("the same, against keys kept by hand", hand, ours);
        self.reset_commands().await?;
        let inside = |key| execute_in(pool.clone(), dispatcher.clone(), key);
        let ours = self.crowd(None, inside).await?;
        report.pair("execute it in one's own transaction", insert, ours);

        let known = Arc::new(self.known_keys(&dispatcher).await?);
        let read = |key| bare_read(pool.clone(), key);
        let read = self.crowd(Some(Arc::clone(&known)), read).await?;
        let repeat = |key| execute(dispatcher.clone(), key);
        let ours = self.crowd(Some(known), repeat).await?;
        report.pair("repeat a command, against a read", read, ours);
        report.pair("repeat a command, against the insert", insert, ours);
        app.shutdown().await?;
        Ok(())
    }

    /// Empties only what commands write: a service is running.
    async fn reset_commands(&self) -> Result<()> {
        sqlx::raw_sql("TRUNCATE effects, floor_commands, wh_command_results")
            .execute(&self.pool)
            .await?;
        sqlx::raw_sql("CHECKPOINT").execute(&self.pool).await?;
        Ok(())
    }

    /// One executed key for each task, so that repeats do not queue for one.
    async fn known_keys(&self, dispatcher: &Dispatcher) -> Result<Vec<Uuid>> {
        let mut keys = Vec::new();
        for _ in 0..self.connections {
            let key = Uuid::now_v7();
            dispatcher.execute(command(key)).await?;
            keys.push(key);
        }
        Ok(keys)
    }

    /// The same work by as many tasks as there are connections, each time with a fresh key, or
    /// always with the task's own.
    async fn crowd<W, F>(&self, keys: Option<Arc<Vec<Uuid>>>, work: W) -> Result<f64>
    where
        W: Fn(Uuid) -> F,
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let each = self.messages / self.connections as usize;
        let mut tasks = JoinSet::new();
        let mut prepared = Vec::new();
        for task in 0..self.connections as usize {
            let own = keys.as_ref().and_then(|keys| keys.get(task).copied());
            let calls: Vec<F> = (0..each)
                .map(|_| work(own.unwrap_or_else(Uuid::now_v7)))
                .collect();
            prepared.push(calls);
        }
        let began = Instant::now();
        for calls in prepared {
            tasks.spawn(async move {
                for call in calls {
                    call.await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        Ok(rate(each * self.connections as usize, began))
    }
}
