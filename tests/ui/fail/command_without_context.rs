//! The key is written in the transaction of the effects.
#![allow(unused)]
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use whizbang::{Command, Event, Metadata, State, handler, idempotent_command};
use whizbang_postgres::{Dispatcher, HandlerContext, LazyContext};

#[derive(Serialize, Deserialize, Command)]
#[message(name = "orders.place_order", reply = Receipt)]
struct PlaceOrder {
    order_id: Uuid,
    number: u32,
    price: f64,
}

#[derive(Serialize, Deserialize)]
struct Receipt;

#[idempotent_command(key = order_id)]
async fn place(command: PlaceOrder) -> anyhow::Result<Receipt> {
    Ok(Receipt)
}

fn main() {}
