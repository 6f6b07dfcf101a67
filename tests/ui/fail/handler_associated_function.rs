//! A handler stands outside of `impl` blocks.
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

struct Stock;

impl Stock {
    #[handler]
    async fn reserve(event: OrderPlaced) -> anyhow::Result<()> {
        Ok(())
    }
}

fn main() {}
