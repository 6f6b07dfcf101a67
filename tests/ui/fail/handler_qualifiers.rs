//! A handler is a plain async function.
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
async unsafe fn reserve(event: OrderPlaced) -> anyhow::Result<()> {
    Ok(())
}

#[handler]
async extern "C" fn ship(event: OrderPlaced) -> anyhow::Result<()> {
    Ok(())
}

#[handler]
const fn count(event: OrderPlaced) -> anyhow::Result<()> {
    Ok(())
}

fn main() {}
