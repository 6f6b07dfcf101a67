//! The stream of an enum is a field of each variant.
#![allow(unused)]
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use whizbang::{Command, Event, Metadata, State, handler, idempotent_command};
use whizbang_postgres::{Dispatcher, HandlerContext, LazyContext};

#[derive(Serialize, Deserialize, Event)]
#[message(name = "orders.changed", stream = order_id)]
enum OrderChanged {
    Placed { order_id: Uuid },
    Shipped { order: Uuid },
    Closed,
}

fn main() {}
