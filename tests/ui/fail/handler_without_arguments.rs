//! A handler takes its message.
#![allow(unused)]
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use whizbang::{Command, Event, Metadata, State, handler, idempotent_command};
use whizbang_postgres::{Dispatcher, HandlerContext, LazyContext};

#[handler]
async fn reserve() -> anyhow::Result<()> {
    Ok(())
}

fn main() {}
