//! A key function goes from the command to its key.
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

fn of_another(receipt: &Receipt) -> Uuid {
    Uuid::nil()
}

fn nothing() -> Uuid {
    Uuid::nil()
}

#[idempotent_command(key_fn = of_another)]
async fn place(command: PlaceOrder, cx: &mut HandlerContext<'_>) -> anyhow::Result<Receipt> {
    Ok(Receipt)
}

#[idempotent_command(key_fn = nothing)]
async fn place_again(command: PlaceOrder, cx: &mut HandlerContext<'_>) -> anyhow::Result<Receipt> {
    Ok(Receipt)
}

#[idempotent_command(key_fn = missing)]
async fn place_once(command: PlaceOrder, cx: &mut HandlerContext<'_>) -> anyhow::Result<Receipt> {
    Ok(Receipt)
}

fn main() {}
