//! A type that does not exist is reported once, and so is a type that is not imported.
#![allow(unused)]
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use whizbang::{Command, Event, Metadata, State, handler, idempotent_command};
use whizbang_postgres::{Dispatcher, HandlerContext, LazyContext};

#[handler]
async fn reserve(event: OrderPlacedd, cx: &mut HandlerContext<'_>) -> anyhow::Result<()> {
    Ok(())
}

mod elsewhere {
    #[whizbang::handler]
    async fn ship(event: (), cx: &mut HandlerContext<'_>) -> anyhow::Result<()> {
        Ok(())
    }
}

fn main() {}
