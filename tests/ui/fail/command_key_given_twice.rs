//! `key` and `key_fn` say the same thing.
#![allow(unused)]
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use whizbang::{Command, Event, Metadata, State, handler, idempotent_command};
use whizbang_postgres::{Dispatcher, HandlerContext, LazyContext};

#[derive(Serialize, Deserialize, Command)]
#[message(name = "orders.place_order", reply = Receipt)]
struct PlaceOrder {
    order_id: Uuid,
    tenant: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Receipt;

fn key(command: &PlaceOrder) -> Uuid {
    command.order_id
}

#[idempotent_command(key = order_id, key_fn = key)]
async fn place(command: PlaceOrder, cx: &mut HandlerContext<'_>) -> anyhow::Result<Receipt> {
    Ok(Receipt)
}

#[idempotent_command(key = Uuid::now_v7(), key_fn = key)]
async fn place_again(command: PlaceOrder, cx: &mut HandlerContext<'_>) -> anyhow::Result<Receipt> {
    Ok(Receipt)
}

fn main() {}
