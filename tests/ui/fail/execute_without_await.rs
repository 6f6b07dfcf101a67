//! Nothing is executed until it is awaited.
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

#[deny(unused_must_use)]
async fn execute(dispatcher: Dispatcher, command: PlaceOrder) {
    dispatcher.execute(command);
}

fn main() {}
