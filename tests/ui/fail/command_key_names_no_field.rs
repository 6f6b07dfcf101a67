//! A key is a field of the command.
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

#[idempotent_command(key = order)]
async fn place(command: PlaceOrder, cx: &mut HandlerContext<'_>) -> anyhow::Result<Receipt> {
    Ok(Receipt)
}

#[idempotent_command(key = (order_id, numbr))]
async fn place_again(command: PlaceOrder, cx: &mut HandlerContext<'_>) -> anyhow::Result<Receipt> {
    Ok(Receipt)
}

fn main() {}
