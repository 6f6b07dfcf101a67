//! The connection is borrowed from the context for as long as it is used.
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
async fn reserve(event: OrderPlaced, cx: &mut HandlerContext<'_>) -> anyhow::Result<()> {
    let conn = cx.conn();
    sqlx::query("SELECT 1").execute(&mut *conn).await?;
    cx.publish(&event).await?;
    sqlx::query("SELECT 2").execute(&mut *conn).await?;
    Ok(())
}

fn main() {}
