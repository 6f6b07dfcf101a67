//! One instance of a service: a process of its own.

use std::{
    pin::pin,
    time::{Duration, Instant},
};

use anyhow::Context;
use sqlx::{PgPool, postgres::PgPoolOptions};
use tokio::io::{AsyncBufReadExt, BufReader};
use whizbang::{Backoff, BreakerPolicy, RuntimeConfig};
use whizbang_postgres::{App, Builder, Dispatcher, PgStore, Whizbang};

use super::{
    handlers::{
        PANIC, bomb, credit, mail, notice, settle, statement, tally as count_credited, transfer,
    },
    messages::{Receipt, Transfer},
    port::{Line, Port},
    wire::{Answer, Request, Tally},
};

/// How long a claim lasts; workers are stopped for longer than that.
pub(crate) const LEASE: Duration = Duration::from_millis(1_500);

/// Clients of the bank in each of its processes.
const CLIENTS: usize = 2;

/// What a worker is told by the parent.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Which service.
    #[arg(long)]
    service: String,
    /// Number of the process.
    #[arg(long)]
    number: usize,
    /// Where the broker listens.
    #[arg(long)]
    broker: String,
    /// The database.
    #[arg(long)]
    database: String,
}

/// Works until the parent says `stop`; ends at once when the parent is gone.
pub(crate) async fn run(options: &Options) -> anyhow::Result<()> {
    keep_planned_panics_quiet();
    let pool = PgPoolOptions::new()
        .max_connections(8)
        .acquire_timeout(Duration::from_secs(3))
        .connect_lazy(&options.database)?;
    let mut stop = pin!(told_to_stop());
    let app = tokio::select! {
        app = start(options, &pool) => app?,
        () = &mut stop => return Ok(()),
    };
    let line = Line::new(&options.broker);
    if options.service == "bank" {
        for _ in 0..CLIENTS {
            tokio::spawn(run_errands(app.dispatcher(), Line::new(&options.broker)));
        }
    }
    tokio::select! {
        () = &mut stop => {}
        () = report(&app, &line, options.number) => {}
    }
    let stopped = app.shutdown().await;
    say_counts(&app, &line, options.number).await;
    stopped.context("the service did not stop in good order")
}

/// Tries until the database is there, as an orchestrator would.
async fn start(options: &Options, pool: &PgPool) -> anyhow::Result<App> {
    loop {
        match builder(options, pool)?.start().await {
            Ok(app) => return Ok(app),
            Err(error) => tracing::warn!(%error, "the service did not start; trying again"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn builder(options: &Options, pool: &PgPool) -> anyhow::Result<Builder> {
    let store = PgStore::new(pool.clone())
        .schema(&options.service)
        .answer_within(Duration::from_secs(3));
    let builder = Whizbang::on(store)
        .service(&*options.service)
        .without_discovery()
        .transport(Port::new(&options.broker, &options.service))
        .state(Line::new(&options.broker))
        .state(pool.clone())
        .config(config());
    match options.service.as_str() {
        "bank" => Ok(builder
            .register::<transfer>()
            .register::<statement>()
            .register::<settle>()
            .register::<mail>()
            .register::<bomb>()),
        "clearing" => Ok(builder
            .register::<credit>()
            .register::<count_credited>()
            .register::<notice>()),
        other => anyhow::bail!("there is no service `{other}`"),
    }
}

/// Short times, so that much happens in a minute.
fn config() -> RuntimeConfig {
    RuntimeConfig {
        // A process that is stopped holds up the handlers that wait for its row locks; what is
        // not poisoned must survive many of their timeouts.
        max_attempts: 25,
        backoff: Backoff::new(Duration::from_millis(20), Duration::from_millis(200)),
        handler_timeout: Duration::from_secs(2),
        lease: LEASE,
        heartbeat: Duration::from_millis(300),
        dead_after: Duration::from_secs(2),
        relay_lease: Duration::from_secs(1),
        idle_poll: Duration::from_millis(200),
        claim_batch: 40,
        stream_run: 5,
        maintenance: Duration::from_secs(5),
        shutdown_deadline: Duration::from_secs(5),
        execute_wait: Duration::from_secs(2),
        breaker: Some(BreakerPolicy {
            failures: 20,
            cool_down: Duration::from_millis(200),
            longest_cool_down: Duration::from_secs(1),
        }),
        ..RuntimeConfig::default()
    }
}

/// A client: asks until it gets an answer, and tells the broker which.
async fn run_errands(dispatcher: Dispatcher, line: Line) {
    loop {
        let asked = line.ask(&Request::Errand { wait_ms: 1_000 }).await;
        let transfer = match asked {
            Ok(Answer::Errand(Some(transfer))) => transfer,
            Ok(_) => continue,
            // The parent is gone, and this process ends with it.
            Err(_) => return,
        };
        if let Some(receipt) = execute(&dispatcher, &transfer).await {
            let (number, effect) = (transfer.number, receipt.effect);
            let told = line.ask(&Request::Executed { number, effect }).await;
            if told.is_err() {
                return;
            }
        }
    }
}

/// Asks again and again under the same key. The broker gives what takes too long to somebody else.
async fn execute(dispatcher: &Dispatcher, transfer: &Transfer) -> Option<Receipt> {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(5) {
        match dispatcher.execute(transfer.clone()).await {
            Ok(receipt) => return Some(receipt),
            Err(error) => tracing::info!(%error, transfer.number, "not executed"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    None
}

async fn report(app: &App, line: &Line, number: usize) {
    let mut tick = tokio::time::interval(Duration::from_millis(300));
    loop {
        tick.tick().await;
        say_counts(app, line, number).await;
    }
}

async fn say_counts(app: &App, line: &Line, worker: usize) {
    let counts = app.counts();
    let tally = Tally {
        duplicates: counts.duplicates,
        completed: counts.completed,
        failed: counts.failed,
        leases_lost: counts.leases_lost,
    };
    if let Err(error) = line.ask(&Request::Counts { worker, tally }).await {
        tracing::info!(error, "nobody listens to the counts");
    }
}

/// Returns when the parent says so. When the pipe ends the parent is dead, and so are we.
async fn told_to_stop() {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    match lines.next_line().await {
        Ok(Some(_)) => {}
        Ok(None) | Err(_) => std::process::exit(1),
    }
}

fn keep_planned_panics_quiet() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if info.payload().downcast_ref::<&str>() != Some(&PANIC) {
            usual(info);
        }
    }));
}
