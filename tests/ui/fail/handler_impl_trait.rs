//! A handler names its types.
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
async fn reserve(event: impl whizbang::Event) -> anyhow::Result<()> {
    Ok(())
}

#[handler]
async fn ship(event: OrderPlaced) -> Result<(), impl std::error::Error> {
    Err(std::io::Error::other("no"))
}

fn main() {}
