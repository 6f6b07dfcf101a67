//! Nothing is published until it is awaited.
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

#[deny(unused_must_use)]
async fn publish(cx: &mut HandlerContext<'_>, event: OrderPlaced) {
    cx.publish(&event);
}

fn main() {}
