//! Arguments are contexts, states and metadata.
#![allow(unused)]
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use whizbang::{Command, Event, Metadata, State, handler, idempotent_command};
use whizbang_postgres::{Dispatcher, HandlerContext, LazyContext};

#[derive(Serialize, Deserialize, Event)]
#[message(name = "orders.order_placed")]
struct OrderPlaced {
    order_id: Uuid,
}

struct Mailer;

#[handler]
async fn mail(event: OrderPlaced, mailer: Mailer) -> anyhow::Result<()> {
    Ok(())
}

#[handler]
async fn state_must_be_clone(event: OrderPlaced, mailer: State<Mailer>) -> anyhow::Result<()> {
    Ok(())
}

fn main() {}
