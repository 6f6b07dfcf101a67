//! An error that is stored can be written and read, and is chosen by a function.
#![allow(unused)]
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use whizbang::{Command, Event, Metadata, State, handler, idempotent_command};
use whizbang_postgres::{Dispatcher, HandlerContext, LazyContext};

#[derive(Serialize, Deserialize, Command)]
#[message(name = "orders.place_order")]
struct PlaceOrder {
    order_id: Uuid,
}

#[derive(Debug, thiserror::Error)]
#[error("sold out")]
struct SoldOut;

fn always<E>(_: &E) -> bool {
    true
}

#[idempotent_command(key = order_id, store_error = always)]
async fn not_serde(order: PlaceOrder, cx: &mut HandlerContext<'_>) -> Result<(), SoldOut> {
    Ok(())
}

#[idempotent_command(key = order_id, store_error = always)]
async fn any_error(order: PlaceOrder, cx: &mut HandlerContext<'_>) -> anyhow::Result<()> {
    Ok(())
}

#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
#[error("refused")]
struct Refused;

fn by_value(_: Refused) -> bool {
    true
}

#[idempotent_command(key = order_id, store_error = by_value)]
async fn chosen_by_value(order: PlaceOrder, cx: &mut HandlerContext<'_>) -> Result<(), Refused> {
    Ok(())
}

#[idempotent_command(key = order_id, store_error = "sold out")]
async fn no_function(order: PlaceOrder, cx: &mut HandlerContext<'_>) -> Result<(), Refused> {
    Ok(())
}

#[handler(store_error = always)]
async fn no_command(order: PlaceOrder) -> Result<(), Refused> {
    Ok(())
}

fn main() {}
