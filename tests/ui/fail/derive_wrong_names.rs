//! Wire names can be stored, and differ from their aliases.
#![allow(unused)]
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use whizbang::{Command, Event, Metadata, State, handler, idempotent_command};
use whizbang_postgres::{Dispatcher, HandlerContext, LazyContext};

#[derive(Serialize, Deserialize, Event)]
#[message(name = "")]
struct Empty;

#[derive(Serialize, Deserialize, Event)]
#[message(name = "orders order placed")]
struct Spaces;

#[derive(Serialize, Deserialize, Event)]
#[message(name = OrderPlaced)]
struct NoString;

#[derive(Serialize, Deserialize, Event)]
#[message(name = "orders.a", alias = "orders.b", alias = "orders.a", alias = "orders.b")]
struct Collisions;

fn main() {}
