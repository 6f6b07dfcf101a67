//! The list of arguments is fixed.
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

#[handler]
async fn mail(event: OrderPlaced, #[cfg(unix)] from: State<String>) -> anyhow::Result<()> {
    Ok(())
}

fn main() {}
