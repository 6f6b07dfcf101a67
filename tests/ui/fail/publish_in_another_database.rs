//! A transaction of another database cannot hold the outbox.
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

mod other_database {
    pub struct Transaction;
}

async fn publish(dispatcher: Dispatcher, mut tx: other_database::Transaction, event: OrderPlaced) {
    let _ = dispatcher.publish(&mut tx, &event).await;
}

fn main() {}
