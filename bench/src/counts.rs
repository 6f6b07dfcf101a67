//! What does not depend on the machine: statements, row versions and WAL for each message.

use std::time::Duration;

use anyhow::Result;
use sqlx::Row;

use crate::{
    handlers::{Handled, Unordered},
    measured::{Bench, TEXT},
    report::{Line, Report},
};

/// Messages that are counted over.
const MESSAGES: usize = 2_000;

struct Counts {
    wal: f64,
    inserted: f64,
    updated: f64,
    deleted: f64,
}

impl Bench {
    async fn counts(&self) -> Result<Counts> {
        let row = sqlx::query("SELECT (pg_current_wal_insert_lsn() - '0/0')::float8, sum(n_tup_ins)::float8, sum(n_tup_upd)::float8, sum(n_tup_del)::float8 FROM pg_stat_user_tables WHERE relname LIKE 'wh\\_%'")
            .fetch_one(&self.pool)
            .await?;
        Ok(Counts {
            wal: row.try_get(0)?,
            inserted: row.try_get(1)?,
            updated: row.try_get(2)?,
            deleted: row.try_get(3)?,
        })
    }

    /// Statistics are flushed when a session has been idle for a moment.
    async fn settled_counts(&self) -> Result<Counts> {
        tokio::time::sleep(Duration::from_secs(2)).await;
        self.counts().await
    }
}

/// Counts the steady state: stored and handed over, one handler, no stream.
pub(crate) async fn count(bench: &Bench, report: &mut Report) -> Result<()> {
    bench.reset().await?;
    let (reached, _arrivals) = tokio::sync::mpsc::unbounded_channel();
    let app = bench.service(&Handled::default(), &reached).await?;
    let dispatcher = app.dispatcher();
    let before = bench.settled_counts().await?;
    let idle = bench.settled_counts().await?;
    for number in 0..MESSAGES {
        dispatcher
            .transaction(async |tx| {
                let event = Unordered {
                    number: number as i64,
                    text: TEXT.to_owned(),
                };
                dispatcher.publish(tx, &event).await?;
                anyhow::Ok(())
            })
            .await?;
    }
    while (app.counts().completed as usize) < MESSAGES {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let after = bench.settled_counts().await?;
    app.shutdown().await?;
    let each = |later: f64, earlier: f64| (later - earlier) / MESSAGES as f64;
    report.single(Line::count(
        "published, delivered, handled: WAL bytes",
        each(after.wal, idle.wal),
    ));
    report.single(Line::count(
        "rows inserted",
        each(after.inserted, idle.inserted),
    ));
    report.single(Line::count(
        "rows updated",
        each(after.updated, idle.updated),
    ));
    report.single(Line::count(
        "rows deleted",
        each(after.deleted, idle.deleted),
    ));
    report.single(Line::count(
        "idle: WAL bytes in two seconds",
        idle.wal - before.wal,
    ));
    Ok(())
}

/// Calls of each function and the milliseconds spent in them, what they call included.
pub(crate) async fn functions(bench: &Bench, report: &mut Report) -> Result<()> {
    tokio::time::sleep(Duration::from_secs(2)).await;
    let rows: Vec<(String, i64, f64)> = sqlx::query_as(
        "SELECT funcname::text, calls, total_time FROM pg_stat_user_functions ORDER BY total_time DESC LIMIT 20",
    )
    .fetch_all(&bench.pool)
    .await?;
    for (name, calls, time) in rows {
        report.single(Line::count(&format!("calls of {name}"), calls as f64));
        report.single(Line::latency(
            &format!("time in {name}"),
            Duration::from_secs_f64(time / 1_000.0),
        ));
    }
    Ok(())
}
