//! All faults of an item are reported at once.
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

#[handler(timeuot = "30s", max_attempts = 0)]
fn reserve(event: &OrderPlaced, a: &mut HandlerContext<'_>, b: &mut HandlerContext<'_>) {}

#[derive(Serialize, Deserialize, Event)]
#[message(nam = "orders.shipped", alias = "", stream = order)]
struct OrderShipped {
    order_id: Uuid,
}

fn main() {}
