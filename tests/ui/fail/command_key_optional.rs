//! A key that may be missing is no key.
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

#[idempotent_command(key = tenant)]
async fn place(command: PlaceOrder, cx: &mut HandlerContext<'_>) -> anyhow::Result<Receipt> {
    Ok(Receipt)
}

fn main() {}
