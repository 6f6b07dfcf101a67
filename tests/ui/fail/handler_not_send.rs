//! What lives across an `.await` must be `Send`.
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

use std::{rc::Rc, sync::Mutex};

#[handler]
async fn reserve(event: OrderPlaced) -> anyhow::Result<()> {
    let count = Rc::new(1);
    std::future::ready(()).await;
    drop(count);
    Ok(())
}

static STOCK: Mutex<u32> = Mutex::new(0);

#[handler]
async fn ship(event: OrderPlaced, cx: &mut HandlerContext<'_>) -> anyhow::Result<()> {
    let mut stock = STOCK.lock().unwrap();
    cx.publish(&event).await?;
    *stock += 1;
    Ok(())
}

fn main() {}
