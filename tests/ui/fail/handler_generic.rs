//! Nothing says for which types a generic handler would be registered.
#![allow(unused)]
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use whizbang::{Command, Event, Metadata, State, handler, idempotent_command};
use whizbang_postgres::{Dispatcher, HandlerContext, LazyContext};

#[handler]
async fn reserve<M: whizbang::Message>(event: M) -> anyhow::Result<()> {
    Ok(())
}

#[handler]
async fn count<const N: usize>(event: [u8; N]) -> anyhow::Result<()> {
    Ok(())
}

fn main() {}
