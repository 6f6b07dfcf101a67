//! A handler has no lifetime parameters.
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
async fn reserve<'a>(event: OrderPlaced, cx: &'a mut HandlerContext<'a>) -> anyhow::Result<()> {
    Ok(())
}

#[handler]
async fn ship(event: OrderPlaced, cx: &'static mut HandlerContext<'static>) -> anyhow::Result<()> {
    Ok(())
}

fn main() {}
