//! Measures the framework against floors: the least that PostgreSQL must do for the same effect,
//! on the same connections, in the same run. Ratios are what counts; the absolute figures are the
//! machine's.

mod commands;
mod counts;
mod floors;
mod handlers;
mod measured;
mod report;

use anyhow::Result;
use clap::Parser;
use report::{Line, Report};
use whizbang_postgres::embedded::Server;

/// What to measure, and for how long.
#[derive(Debug, Parser)]
struct Options {
    /// Rounds of each pair of measurements; the floor and the framework take turns.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Messages of each measurement.
    #[arg(long, default_value_t = 10_000)]
    messages: usize,
    /// Connections, and messages worked on at once.
    #[arg(long, default_value_t = 16)]
    connections: u32,
    /// Writes the figures to this file as JSON.
    #[arg(long)]
    json: Option<std::path::PathBuf>,
    /// Only measurements whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Says how often each function of the schema was called, and for how long.
    #[arg(long)]
    functions: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse();
    let server = Server::builder().durable(true).start()?;
    server.create_database("bench").await?;
    if options.functions {
        let pool = sqlx::PgPool::connect_with(server.connect_options("bench")).await?;
        sqlx::raw_sql("ALTER DATABASE bench SET track_functions = 'all'")
            .execute(&pool)
            .await?;
    }
    let pool = sqlx::postgres::PgPoolOptions::new()
        .max_connections(options.connections + 4)
        .connect_with(server.connect_options("bench"))
        .await?;
    whizbang_postgres::migrate(&pool).await?;
    floors::prepare(&pool).await?;
    let mut report = Report::default();
    let bench = measured::Bench {
        pool: pool.clone(),
        messages: options.messages,
        connections: options.connections,
    };
    let wanted = |name: &str| name.contains(&options.only);
    for round in 0..options.rounds {
        report.say(&format!("round {} of {}", round + 1, options.rounds));
        if wanted("store") {
            let floor = bench.floor_store().await?;
            let ours = bench.store().await?;
            report.pair("store batches of 500", floor, ours);
        }
        if wanted("transaction") {
            let floor = bench.floor_transactions().await?;
            let ours = bench.handle_transactions(false).await?;
            report.pair("handle, one insert in a transaction", floor, ours);
            let floor = bench.floor_transactions().await?;
            let ours = bench.handle_transactions(true).await?;
            report.pair("the same, streams of ten", floor, ours);
        }
        if wanted("plain") {
            let floor = bench.floor_delete().await?;
            let ours = bench.handle_plain().await?;
            report.pair("handle, no-op without transaction", floor, ours);
        }
        if wanted("publish") {
            let floor = bench.floor_publish().await?;
            let ours = bench.publish().await?;
            report.pair("publish in a transaction", floor, ours);
        }
        if wanted("execute") {
            bench.commands(&mut report).await?;
        }
        if wanted("latency") {
            let (middle, high) = bench.latency().await?;
            report.single(Line::latency("commit to handler, p50", middle));
            report.single(Line::latency("commit to handler, p99", high));
        }
    }
    if wanted("counts") {
        counts::count(&bench, &mut report).await?;
    }
    if wanted("idle") {
        counts::idle(&bench, &mut report).await?;
    }
    // A large backlog takes its time, so it is measured on request only.
    if options.only == "memory" {
        counts::memory(&bench, &mut report).await?;
    }
    if options.functions {
        counts::functions(&bench, &mut report).await?;
    }
    report.print();
    if let Some(path) = options.json {
        std::fs::write(path, report.json()?)?;
    }
    Ok(())
}
