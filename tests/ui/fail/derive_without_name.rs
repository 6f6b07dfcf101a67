//! A message has a wire name.
#![allow(unused)]
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use whizbang::{Command, Event, Metadata, State, handler, idempotent_command};
use whizbang_postgres::{Dispatcher, HandlerContext, LazyContext};

#[derive(Serialize, Deserialize, Event)]
struct OrderPlaced;

#[derive(Serialize, Deserialize, Command)]
#[message(stream = order_id)]
struct PlaceOrder {
    order_id: Uuid,
}

#[derive(Serialize, Deserialize, Event)]
#[message]
struct OrderShipped;

async fn no_second_error(cx: &mut HandlerContext<'_>) {
    let _ = cx.publish(&OrderPlaced).await;
}

fn main() {}
