//! Nothing is sent until it is awaited, inside and outside handlers.
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
async fn send(
    dispatcher: Dispatcher,
    tx: &mut sqlx::PgTransaction<'_>,
    command: PlaceOrder,
    cx: &mut HandlerContext<'_>,
) {
    dispatcher.send(tx, &command);
    cx.send(&command);
}

fn main() {}
