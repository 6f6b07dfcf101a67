//! The message comes first.
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
async fn reserve(cx: &mut HandlerContext<'_>, event: OrderPlaced) -> anyhow::Result<()> {
    Ok(())
}

#[handler]
async fn mail(State(from): State<String>, event: OrderPlaced) -> anyhow::Result<()> {
    Ok(())
}

fn main() {}
