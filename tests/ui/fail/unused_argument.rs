//! An unused argument is reported as in any function.
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

#[deny(unused_variables)]
#[handler]
async fn reserve(event: OrderPlaced, meta: &Metadata) -> anyhow::Result<()> {
    let OrderPlaced { order_id: _ } = event;
    Ok(())
}

fn main() {}
