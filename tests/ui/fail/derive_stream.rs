//! A stream is a field that can be a key.
#![allow(unused)]
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use whizbang::{Command, Event, Metadata, State, handler, idempotent_command};
use whizbang_postgres::{Dispatcher, HandlerContext, LazyContext};

#[derive(Serialize, Deserialize, Event)]
#[message(name = "orders.a", stream = ordr_id)]
struct NoField {
    order_id: Uuid,
}

#[derive(Serialize, Deserialize, Event)]
#[message(name = "orders.b", stream = order_id.customer)]
struct NoInnerField {
    order_id: Uuid,
}

#[derive(Serialize, Deserialize, Event)]
#[message(name = "orders.c", stream = price)]
struct NoKey {
    price: f64,
}

#[derive(Serialize, Deserialize, Event)]
#[message(name = "orders.d", stream = id.to_string())]
struct Computed {
    id: u32,
}

#[derive(Serialize, Deserialize, Event)]
#[message(name = "orders.e", stream = id, stream = other)]
struct Two {
    id: u32,
    other: u32,
}

#[derive(Serialize, Deserialize, Event)]
#[message(name = "orders.f", stream = id)]
struct Unit;

fn main() {}
