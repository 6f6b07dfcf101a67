//! Only annotated functions can be registered.
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

async fn reserve(event: OrderPlaced) -> anyhow::Result<()> {
    Ok(())
}

struct Stock;

fn register(builder: whizbang_postgres::Builder) {
    let _ = builder.register::<Stock>();
}

fn main() {}
