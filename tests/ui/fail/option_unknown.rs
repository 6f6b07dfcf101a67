//! Unknown options are refused, with a guess.
#![allow(unused)]
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use whizbang::{Command, Event, Metadata, State, handler, idempotent_command};
use whizbang_postgres::{Dispatcher, HandlerContext, LazyContext};

#[derive(Serialize, Deserialize, Event)]
#[message(name = "orders.order_placed")]
struct OrderPlaced {
    order_id: Uuid,
}

#[handler(timeuot = "30s", retries = 5, key = order_id)]
async fn reserve(event: OrderPlaced) -> anyhow::Result<()> {
    Ok(())
}

fn main() {}
