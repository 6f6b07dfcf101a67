//! A pool is passed by `&`, as queries take it.
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

async fn publish(dispatcher: Dispatcher, pool: sqlx::PgPool, event: OrderPlaced) {
    let _ = dispatcher.publish(&pool, &event).await;
}

fn main() {}
