//! Chaos on the real thing: money moves between accounts through two services of several
//! processes each, while processes, PostgreSQL, connections, the broker and the handlers fail.
//!
//! `plan` says what is asked for, `messages` and `handlers` are the services, `worker` is one of
//! their processes. `faults` and `fleet` do the damage, with `broker` and the proxy in front of
//! PostgreSQL. `ledger` compares what is there at the end with what the plan alone says.

mod broker;
mod faults;
mod figures;
mod fleet;
mod handlers;
mod hub;
mod ledger;
mod messages;
mod parent;
mod plan;
mod port;
mod queue;
mod wire;
mod worker;

use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};

/// Services that move money while everything around them fails.
///
/// Runs on a private PostgreSQL server, which is killed and restarted on the way and gone
/// afterwards. The last line is `chaos: lost 0, doubled 0, out of order 0` and the exit code 0;
/// otherwise the lines before it say what differs, and the exit code is 1.
#[derive(Debug, Parser)]
#[command(name = "chaos", args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    role: Option<Role>,

    #[command(flatten)]
    options: parent::Options,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// One process of a service; started by the parent.
    #[command(hide = true)]
    Worker(worker::Options),
}

fn main() -> ExitCode {
    let log = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("off"));
    tracing_subscriber::fmt()
        .with_env_filter(log)
        .with_writer(std::io::stderr)
        .init();
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether everything is as it should be.
fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    let runtime = tokio::runtime::Runtime::new().context("the runtime did not start")?;
    match &arguments.role {
        Some(Role::Worker(options)) => {
            runtime.block_on(worker::run(options))?;
            Ok(true)
        }
        None => runtime.block_on(parent::run(&arguments.options)),
    }
}
