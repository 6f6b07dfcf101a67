//! The attribute goes on the type: on a field it would say nothing.
#![allow(unused)]
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use whizbang::{Command, Event, Metadata, State, handler, idempotent_command};
use whizbang_postgres::{Dispatcher, HandlerContext, LazyContext};

#[derive(Serialize, Deserialize, Event)]
#[message(name = "orders.a")]
struct OnAField {
    #[message(stream)]
    order_id: Uuid,
}

#[derive(Serialize, Deserialize, Command)]
#[message(name = "orders.b")]
enum OnAVariant {
    #[message(name = "orders.opened")]
    Opened { order_id: Uuid },
    Closed {
        #[message(stream = order_id)]
        order_id: Uuid,
    },
}

fn main() {}
