//! A handler returns a `Result` of nothing.
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
async fn reserve(event: OrderPlaced) -> bool {
    true
}

#[handler]
async fn count(event: OrderPlaced) -> Result<u32, std::io::Error> {
    Ok(1)
}

fn main() {}
