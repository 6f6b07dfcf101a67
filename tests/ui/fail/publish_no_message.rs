//! A type without a wire name is no message.
#![allow(unused)]
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use whizbang::{Command, Event, Metadata, State, handler, idempotent_command};
use whizbang_postgres::{Dispatcher, HandlerContext, LazyContext};

#[derive(Serialize, Deserialize)]
struct Note;

async fn publish(cx: &mut HandlerContext<'_>) {
    let _ = cx.publish(&Note).await;
}

fn main() {}
