//! All faults of a command at once.
#![allow(unused)]
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use whizbang::{Command, Event, Metadata, State, handler, idempotent_command};
use whizbang_postgres::{Dispatcher, HandlerContext, LazyContext};

#[derive(Serialize, Deserialize, Command)]
#[message(name = "orders.place_order", reply = Receipt)]
struct PlaceOrder {
    order_id: Uuid,
    tenant: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Receipt;

#[idempotent_command(scop = "x", timeout = 5)]
fn place(command: &PlaceOrder) {}

fn main() {}
