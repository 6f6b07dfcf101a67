//! Unknown options are refused, with a guess.
#![allow(unused)]
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use whizbang::{Command, Event, Metadata, State, handler, idempotent_command};
use whizbang_postgres::{Dispatcher, HandlerContext, LazyContext};

#[derive(Serialize, Deserialize, Event)]
#[message(name = "orders.a", steam = id)]
struct Slip {
    id: u32,
}

#[derive(Serialize, Deserialize, Event)]
#[message(name = "orders.b", reply = u32)]
struct EventWithReply;

#[derive(Serialize, Deserialize, Event)]
#[message(name = "orders.c", topic = "orders")]
struct Stranger;

fn main() {}
