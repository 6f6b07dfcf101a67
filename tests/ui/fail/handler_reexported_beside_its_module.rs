//! A module and the handler in it have one name: `pub use reserve::*` takes the function alone.
#![allow(unused)]
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use whizbang::{Command, Event, Metadata, State, handler, idempotent_command};
use whizbang_postgres::{Dispatcher, HandlerContext, LazyContext};

mod reserve {
    #[derive(serde::Serialize, serde::Deserialize, whizbang::Event)]
    #[message(name = "orders.order_placed")]
    pub struct OrderPlaced;

    #[whizbang::handler]
    pub async fn reserve(event: OrderPlaced) -> anyhow::Result<()> {
        Ok(())
    }
}
pub use reserve::reserve;

fn main() {}
