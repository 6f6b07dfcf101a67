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

/// What an idle service costs: processor time of the process and transactions on the server.
pub(crate) async fn idle(bench: &Bench, report: &mut Report) -> Result<()> {
    const TIME: Duration = Duration::from_secs(20);
    bench.reset().await?;
    let (reached, _arrivals) = tokio::sync::mpsc::unbounded_channel();
    let app = bench.service(&Handled::default(), &reached).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (transactions, ticks) = (transactions(bench).await?, cpu_ticks()?);
    tokio::time::sleep(TIME).await;
    let transactions = self::transactions(bench).await? - transactions;
    let ticks = cpu_ticks()? - ticks;
    app.shutdown().await?;
    let seconds = TIME.as_secs_f64();
    report.single(Line::count(
        "idle: transactions a second",
        transactions / seconds,
    ));
    // A tick is a hundredth of a second.
    report.single(Line::count(
        "idle: share of a processor, per cent",
        ticks / seconds,
    ));
    Ok(())
}

async fn transactions(bench: &Bench) -> Result<f64> {
    let count: i64 = sqlx::query_scalar(
        "SELECT (xact_commit + xact_rollback)::bigint FROM pg_stat_database WHERE datname = current_database()",
    )
    .fetch_one(&bench.pool)
    .await?;
    Ok(count as f64)
}

/// User and system time of this process.
fn cpu_ticks() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The name of the program may hold spaces; fields are counted from behind it.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2);
    Ok(ticks.filter_map(|field| field.parse::<f64>().ok()).sum())
}

/// Resident memory of this process in MiB: a service that is idle, and one behind a backlog.
pub(crate) async fn memory(bench: &Bench, report: &mut Report) -> Result<()> {
    for backlog in [0, bench.messages] {
        bench.subscribe().await?;
        bench.reset().await?;
        if backlog > 0 {
            bench
                .fill(|number| Unordered {
                    number: number as i64,
                    text: TEXT.to_owned(),
                })
                .await?;
        }
        let (reached, _arrivals) = tokio::sync::mpsc::unbounded_channel();
        let app = bench.service(&Handled::default(), &reached).await?;
        tokio::time::sleep(Duration::from_secs(10)).await;
        let memory = resident()?;
        app.shutdown().await?;
        report.single(Line::count(
            &format!("MiB of the process, backlog of {backlog}"),
            memory,
        ));
    }
    Ok(())
}

fn resident() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(kilobytes.unwrap_or_default().parse::<f64>()? / 1024.0)
}
