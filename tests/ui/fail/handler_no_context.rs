//! Only a context is taken by `&mut`.
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
async fn reserve(event: OrderPlaced, conn: &mut sqlx::PgConnection) -> anyhow::Result<()> {
    Ok(())
}

fn main() {}
