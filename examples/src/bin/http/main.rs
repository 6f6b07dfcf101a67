//! A web service whose requests can be repeated: `POST /orders` takes effect once for each
//! `Idempotency-Key`, however often and wherever it is sent again.
//!
//! `orders` is the command and what follows from it, `api` the way from HTTP to it, and this file
//! starts and stops both in order. Try it with `cargo xtask http`.

mod api;
mod database;
mod orders;

use std::{net::SocketAddr, process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context;
use clap::Parser;
use tokio::{net::TcpListener, sync::watch};
use whizbang_postgres::{App, PgStore, Whizbang, embedded::Server};

/// How long requests under way may take to end after the signal to stop.
const LAST_ANSWERS: Duration = Duration::from_secs(20);

/// An order service over HTTP.
///
/// Uses the database of DATABASE_URL, in a schema of its own that stays; else a private PostgreSQL
/// server that is gone afterwards.
#[derive(Debug, Clone, Parser)]
#[command(name = "http")]
struct Arguments {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:3000")]
    listen: SocketAddr,

    /// How many milliseconds it takes to place an order, so that repeats meet it under way.
    #[arg(long, default_value_t = 0)]
    slow: u64,

    /// Answers 409 to a repeat that meets the same request under way, instead of waiting for it.
    #[arg(long)]
    refuse_in_progress: bool,
}

fn main() -> ExitCode {
    let log = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(log)
        .with_writer(std::io::stderr)
        .init();
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new().context("the runtime did not start")?;
    let given = std::env::var("DATABASE_URL").ok();
    if let Some(url) = given.filter(|url| !url.is_empty()) {
        return runtime.block_on(serve(arguments, &url));
    }
    let server = Server::start()
        .context("DATABASE_URL is not set, and no private server could be started")?;
    runtime.block_on(server.create_database("shop"))?;
    eprintln!("started a private PostgreSQL server; it is gone when this program ends");
    let served = runtime.block_on(serve(arguments, &server.url("shop")));
    server.stop().context("the private server did not stop")?;
    served
}

async fn serve(arguments: &Arguments, url: &str) -> anyhow::Result<()> {
    let pool = database::prepare(url).await?;
    let app = Whizbang::on(PgStore::new(pool.clone()).schema(database::SCHEMA))
        .service("shop")
        .state(orders::Pace(Duration::from_millis(arguments.slow)))
        .expect_handlers(2)
        .start()
        .await
        .context("the service did not start")?;
    let app = Arc::new(app);
    let listener = TcpListener::bind(arguments.listen)
        .await
        .with_context(|| format!("cannot listen on {}", arguments.listen))?;
    say(&format!("listening on http://{}", listener.local_addr()?));
    let shop = api::Shop {
        app: Arc::clone(&app),
        pool,
        refuse_in_progress: arguments.refuse_in_progress,
    };
    let served = until_stopped(listener, shop).await;
    // No request is under way any more: what they have published goes on in the next process.
    stop(&app).await?;
    say("stopped");
    served
}

/// Serves until the signal to stop, and then until the last answer is sent.
async fn until_stopped(listener: TcpListener, shop: api::Shop) -> anyhow::Result<()> {
    let (stop, mut stopping) = watch::channel(false);
    let signalled = async move {
        signal().await;
        stop.send_replace(true);
    };
    let server = axum::serve(listener, api::routes(shop)).with_graceful_shutdown(signalled);
    let overdue = async {
        // The sender lives as long as the server.
        let _ = stopping.wait_for(|stopping| *stopping).await;
        tokio::time::sleep(LAST_ANSWERS).await;
    };
    tokio::select! {
        served = server => served.context("the server failed"),
        () = overdue => {
            tracing::warn!("requests were cut off after {LAST_ANSWERS:?}; they are rolled back");
            Ok(())
        }
    }
}

async fn stop(app: &App) -> anyhow::Result<()> {
    app.shutdown()
        .await
        .context("the service did not stop in good order")
}

/// Ctrl-C, or what a supervisor sends.
async fn signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let terminated = async {
        match signal(SignalKind::terminate()) {
            Ok(mut terminated) => drop(terminated.recv().await),
            Err(error) => {
                tracing::warn!(%error, "cannot listen for SIGTERM");
                std::future::pending::<()>().await;
            }
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = terminated => {}
    }
}

#[expect(clippy::print_stdout, reason = "it is what the program is asked for")]
fn say(text: &str) {
    println!("{text}");
}
