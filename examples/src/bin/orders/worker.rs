//! One instance of the order service: a process of its own, fed through its standard input.

use std::time::Duration;

use anyhow::Context;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    sync::mpsc,
    task::JoinHandle,
};
use whizbang::{Backoff, BreakerPolicy, RuntimeConfig, transport::InProcess};
use whizbang_postgres::{App, PgStore, Whizbang};

use crate::{
    handlers::{self, CardTerminal, Mailer},
    input,
    mishaps::Mishaps,
    schema,
    wire::{self, Report, Reporter, Tally},
};

/// Deliveries that are stored before their numbers are reported; a report must fit into one
/// write to a pipe, which a kill cannot cut in two.
const BATCH: usize = 200;

/// Runs until the parent closes the pipe, or is gone.
pub(crate) async fn run(database_url: &str, seed: u64) -> anyhow::Result<()> {
    let pool = schema::connect(database_url, schema::WORKER_CONNECTIONS).await?;
    let transport = InProcess::new("shop-front");
    let app = Whizbang::on(PgStore::new(pool).schema(schema::SCHEMA))
        .service("orders")
        .intake(transport.clone())
        .state(Mishaps::new(seed))
        .state(CardTerminal)
        .state(Mailer::new(Reporter))
        .expect_handlers(handlers::COUNT)
        .config(config())
        .start()
        .await
        .context("the order service did not start")?;
    let fed = feed(&app, &transport).await;
    app.shutdown()
        .await
        .context("the order service did not stop in good order")?;
    Reporter.say(&Report::Counts(Tally::from(app.counts())))?;
    fed
}

/// Short times, so that what a killed worker held is taken over within seconds.
fn config() -> RuntimeConfig {
    RuntimeConfig {
        max_attempts: 6,
        backoff: Backoff::new(Duration::from_millis(20), Duration::from_millis(200)),
        handler_timeout: Duration::from_secs(10),
        lease: Duration::from_secs(5),
        heartbeat: Duration::from_millis(500),
        dead_after: Duration::from_secs(2),
        idle_poll: Duration::from_millis(200),
        claim_batch: 200,
        stream_run: 5,
        shutdown_deadline: Duration::from_secs(10),
        message_limit: input::MESSAGE_LIMIT,
        breaker: Some(BreakerPolicy {
            failures: 20,
            cool_down: Duration::from_millis(200),
            longest_cool_down: Duration::from_secs(1),
        }),
        ..RuntimeConfig::default()
    }
}

/// Passes deliveries on to the transport and says when they are safe.
async fn feed(app: &App, transport: &InProcess) -> anyhow::Result<()> {
    let (sender, mut deliveries) = mpsc::channel(BATCH);
    let reader = tokio::spawn(read_lines(sender));
    let mut tick = tokio::time::interval(Duration::from_millis(200));
    loop {
        let mut batch = Vec::new();
        tokio::select! {
            received = deliveries.recv_many(&mut batch, BATCH) => {
                if received == 0 {
                    break;
                }
                let stored = store(transport, &batch, &reader).await?;
                Reporter.say(&Report::Stored { deliveries: stored })?;
            }
            _ = tick.tick() => Reporter.say(&Report::Counts(Tally::from(app.counts())))?,
        }
    }
    reader.await.context("reading the deliveries failed")?
}

/// Delivers a batch and waits until the inbox has it: a broker would be acknowledged now.
async fn store(
    transport: &InProcess,
    batch: &[Vec<u8>],
    reader: &JoinHandle<anyhow::Result<()>>,
) -> anyhow::Result<Vec<u64>> {
    let mut numbers = Vec::with_capacity(batch.len());
    for line in batch {
        let (number, content) =
            wire::read_delivery(line).context("the parent sent a line without a number")?;
        numbers.push(number);
        match input::message(content) {
            Ok(message) => transport.deliver(message),
            Err(error) => {
                transport.deliver_poison(content, format!("the line is no message: {error}"));
            }
        }
    }
    while transport.waiting() > 0 {
        // The parent closes the pipe after everything is stored, unless it died.
        anyhow::ensure!(!reader.is_finished(), "the parent is gone");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(numbers)
}

/// Reads the parent's lines until the pipe is closed.
async fn read_lines(sender: mpsc::Sender<Vec<u8>>) -> anyhow::Result<()> {
    let mut input = BufReader::new(tokio::io::stdin());
    loop {
        let mut line = Vec::new();
        let read = input.read_until(b'\n', &mut line).await?;
        // A line without an end was cut off by the parent's death.
        if read == 0 || line.pop() != Some(b'\n') || sender.send(line).await.is_err() {
            return Ok(());
        }
    }
}
