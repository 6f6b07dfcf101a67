//! A union has no JSON form.
#![allow(unused)]
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use whizbang::{Command, Event, Metadata, State, handler, idempotent_command};
use whizbang_postgres::{Dispatcher, HandlerContext, LazyContext};

#[derive(Event)]
#[message(name = "orders.bits")]
union Bits {
    whole: u32,
    half: u16,
}

fn main() {}
