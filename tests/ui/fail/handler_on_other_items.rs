//! Only free functions can be handlers.
#![allow(unused)]
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use whizbang::{Command, Event, Metadata, State, handler, idempotent_command};
use whizbang_postgres::{Dispatcher, HandlerContext, LazyContext};

#[handler]
struct Orders;

#[handler]
impl Orders {}

#[handler]
mod orders {}

#[handler]
const ORDERS: usize = 1;

trait Handles {
    #[handler]
    async fn handle(event: String) -> anyhow::Result<()>;
}

fn main() {}
