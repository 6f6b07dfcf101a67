//! A message is an event or a command.
#![allow(unused)]
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use whizbang::{Command, Event, Metadata, State, handler, idempotent_command};
use whizbang_postgres::{Dispatcher, HandlerContext, LazyContext};

#[derive(Serialize, Deserialize, Event, Command)]
#[message(name = "orders.order_placed")]
struct OrderPlaced {
    order_id: Uuid,
}

fn main() {}
