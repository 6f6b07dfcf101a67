//! What is published outside a handler is an event too, and what is sent a command.
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
    tenant: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Receipt;

async fn swap(
    dispatcher: Dispatcher,
    tx: &mut sqlx::PgTransaction<'_>,
    event: OrderPlaced,
    command: PlaceOrder,
) {
    let _ = dispatcher.publish(tx, &command).await;
    let _ = dispatcher.send(tx, &event).await;
    let _ = dispatcher.execute("an order").await;
}

fn main() {}
