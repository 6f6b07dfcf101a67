//! A pool is no transaction: the message would leave whatever becomes of the writes.
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

async fn publish(dispatcher: Dispatcher, mut pool: sqlx::PgPool, event: OrderPlaced) {
    let _ = dispatcher.publish(&mut pool, &event).await;
}

fn main() {}
