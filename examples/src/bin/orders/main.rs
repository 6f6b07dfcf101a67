//! The main job of the framework on real input: an order service that is fed a file of orders.
//!
//! The file holds duplicates, contradictions and broken lines; every line is delivered several
//! times and out of order; handlers fail at random; with `--chaos`, workers are killed on the way.
//! At the end a ledger compares the database with what the file alone says must be there.
//!
//! `handlers` and `messages` are what a service of your own would look like, `worker` is how it
//! is started. The rest plays the world around it.

mod catalogue;
mod feed;
mod fleet;
mod handlers;
mod input;
mod ledger;
mod messages;
mod mishaps;
mod parent;
mod progress;
mod schema;
mod wire;
mod worker;

use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use whizbang_postgres::embedded::Server;

/// An order service on exactly-once handlers, fed with a file of orders.
///
/// Uses the database of DATABASE_URL, in a schema of its own that each run makes anew; else a
/// private PostgreSQL server that is gone afterwards. The last line is `ledger: balanced` and the
/// exit code 0, or the differences and 1.
#[derive(Debug, Parser)]
#[command(name = "orders", args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    role: Option<Role>,

    #[command(flatten)]
    options: parent::Options,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// One instance of the service; started by the parent.
    #[command(hide = true)]
    Worker {
        #[arg(long)]
        seed: u64,
    },
}

fn main() -> ExitCode {
    let log = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("error"));
    tracing_subscriber::fmt()
        .with_env_filter(log)
        .with_writer(std::io::stderr)
        .init();
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Returns whether everything is as it should be.
fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    let runtime = tokio::runtime::Runtime::new().context("the runtime did not start")?;
    let given = std::env::var("DATABASE_URL")
        .ok()
        .filter(|url| !url.is_empty());
    match (&arguments.role, given) {
        (Some(Role::Worker { seed }), url) => {
            let url = url.context("a worker is started by the parent, with DATABASE_URL set")?;
            runtime.block_on(worker::run(&url, *seed))?;
            Ok(true)
        }
        (None, Some(url)) => runtime.block_on(parent::run(&arguments.options, &url)),
        (None, None) => {
            let server = Server::start()
                .context("DATABASE_URL is not set, and no private server could be started")?;
            runtime.block_on(server.create_database("orders"))?;
            eprintln!("started a private PostgreSQL server for this run");
            let balanced = runtime.block_on(parent::run(&arguments.options, &server.url("orders")));
            server.stop().context("the private server did not stop")?;
            balanced
        }
    }
}
