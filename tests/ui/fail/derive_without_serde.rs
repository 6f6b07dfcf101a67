//! A message can be written and read.
#![allow(unused)]
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use whizbang::{Command, Event, Metadata, State, handler, idempotent_command};
use whizbang_postgres::{Dispatcher, HandlerContext, LazyContext};

#[derive(Deserialize, Event)]
#[message(name = "orders.a")]
struct NotSerialize;

#[derive(Serialize, Event)]
#[message(name = "orders.b")]
struct NotDeserialize;

#[derive(Command)]
#[message(name = "orders.c")]
struct Neither;

fn main() {}

async fn no_second_error(cx: &mut HandlerContext<'_>) {
    let _ = cx.publish(&NotDeserialize).await;
}

#[handler]
async fn nor_here(event: NotDeserialize, cx: &mut HandlerContext<'_>) -> anyhow::Result<()> {
    cx.publish(&NotSerialize).await?;
    Ok(())
}
