//! An event is no command.
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

#[idempotent_command(key = order_id)]
async fn place(event: OrderPlaced, cx: &mut HandlerContext<'_>) -> anyhow::Result<()> {
    Ok(())
}

fn main() {}
