//! A handler handles one message.
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

#[derive(Serialize, Deserialize, Command)]
#[message(name = "orders.place_order", reply = Receipt)]
struct PlaceOrder {
    order_id: Uuid,
    number: u32,
    price: f64,
}

#[derive(Serialize, Deserialize)]
struct Receipt;

#[handler]
async fn reserve(event: OrderPlaced, command: PlaceOrder) -> anyhow::Result<()> {
    Ok(())
}

fn main() {}
