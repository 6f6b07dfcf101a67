//! Nor are functions of traits handlers.
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

trait Orders {
    async fn reserve(event: OrderPlaced) -> anyhow::Result<()>;
}

struct Shop;

impl Orders for Shop {
    #[handler]
    async fn reserve(event: OrderPlaced) -> anyhow::Result<()> {
        Ok(())
    }
}

fn main() {}
