//! A command has a key.
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

#[idempotent_command]
async fn place(command: PlaceOrder, cx: &mut HandlerContext<'_>) -> anyhow::Result<Receipt> {
    Ok(Receipt)
}

fn main() {}
