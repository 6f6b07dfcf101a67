//! A connection is no transaction, and is not borrowed mutably.
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

async fn publish(dispatcher: Dispatcher, connection: &sqlx::PgConnection, event: OrderPlaced) {
    let _ = dispatcher.publish(connection, &event).await;
}

fn main() {}
