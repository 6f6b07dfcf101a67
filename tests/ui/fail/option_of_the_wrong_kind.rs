//! Options have values of their kind.
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

#[handler(
    name = "reserve stock",
    lane = 5,
    max_attempts = 0,
    backoff = 5,
    timeout = "5 parsecs",
    concurrency = "8",
    on_dead = "explode"
)]
async fn reserve(event: OrderPlaced) -> anyhow::Result<()> {
    Ok(())
}

#[handler(max_attempts, backoff = "5m..1s", timeout = "0s", concurrency = -1, "30s")]
async fn ship(event: OrderPlaced) -> anyhow::Result<()> {
    Ok(())
}

fn main() {}
