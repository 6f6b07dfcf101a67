//! One wire name is one type.
#![allow(unused)]
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use whizbang::{Command, Event, Metadata, State, handler, idempotent_command};
use whizbang_postgres::{Dispatcher, HandlerContext, LazyContext};

#[derive(Serialize, Deserialize, Event)]
#[message(name = "orders.changed")]
struct Changed<T> {
    value: T,
}

#[derive(Serialize, Deserialize, Event)]
#[message(name = "orders.noted")]
struct Noted<'a> {
    #[serde(borrow)]
    text: std::borrow::Cow<'a, str>,
}

async fn no_second_error(cx: &mut HandlerContext<'_>) {
    let _ = cx.publish(&Changed { value: 1 }).await;
}

fn main() {}
