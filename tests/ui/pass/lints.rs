//! Generated code gives no warning of its own, however strict the user is.

#![deny(warnings, missing_docs, clippy::all, clippy::pedantic)]
#![deny(
    elided_lifetimes_in_paths,
    rust_2018_idioms,
    single_use_lifetimes,
    unnameable_types,
    unreachable_pub,
    unused_lifetimes,
    unused_qualifications,
    variant_size_differences
)]
#![forbid(unsafe_code, non_snake_case, dead_code)]

use serde::{Deserialize, Serialize};
use whizbang::{Command, Event, Metadata, State, handler, idempotent_command};
use whizbang_postgres::{HandlerContext, LazyContext};

/// An event.
#[derive(Serialize, Deserialize, Event)]
#[message(name = "lints.event", stream = id)]
pub(crate) struct Happened {
    id: u8,
}

/// An enum.
#[derive(Serialize, Deserialize, Event)]
#[message(name = "lints.changed", stream = id)]
pub(crate) enum Changed {
    /// A variant.
    Opened {
        /// A field.
        id: u8,
    },
}

/// A command.
#[derive(Serialize, Deserialize, Command)]
#[message(name = "lints.command", reply = u8)]
pub(crate) struct Do {
    id: u8,
    part: String,
}

/// A handler that never awaits.
#[handler]
async fn without_await(event: Happened) -> Result<(), std::io::Error> {
    let _ = event;
    Ok(())
}

/// A handler.
#[handler(
    name = "lints",
    lane = "lints",
    max_attempts = 1,
    backoff = "1s..1s",
    timeout = "1s",
    concurrency = 1,
    on_dead = "continue"
)]
async fn with_everything(
    event: Changed,
    State(state): State<String>,
    meta: &Metadata,
    lazy: &mut LazyContext<'_>,
) -> anyhow::Result<()> {
    let Changed::Opened { id } = event;
    let _ = (id, state, meta);
    lazy.begin().await?;
    Ok(())
}

/// A command's handler.
#[idempotent_command(key = (id, part))]
async fn execute(command: Do, cx: &mut HandlerContext<'_>) -> anyhow::Result<u8> {
    cx.publish(&Happened { id: command.id }).await?;
    Ok(command.id)
}

/// Another one.
#[idempotent_command(key_fn = key)]
async fn execute_by_function(command: Do, _: &mut HandlerContext<'_>) -> anyhow::Result<u8> {
    Ok(command.id)
}

/// A key.
fn key(command: &Do) -> &str {
    &command.part
}
