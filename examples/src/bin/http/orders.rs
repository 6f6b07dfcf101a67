//! The command, and what follows from it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;
use whizbang::{BoxError, Command, Event, PublishError, State, handler, idempotent_command};
use whizbang_postgres::HandlerContext;

/// What a client asks for. The key is the client's; it comes in the header or in the body.
#[derive(Debug, Serialize, Deserialize, Command)]
#[message(name = "shop.place_order", reply = OrderReceipt)]
pub(crate) struct PlaceOrder {
    request_id: String,
    sku: String,
    quantity: i64,
    /// Fields that are added later are optional, so that older clients need not know them.
    #[serde(default)]
    note: Option<String>,
}

/// What it is answered, the first time and every time.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OrderReceipt {
    pub(crate) order_id: Uuid,
    sku: String,
    quantity: i64,
}

#[derive(Debug, Serialize, Deserialize, Event)]
#[message(name = "shop.order_placed", stream = order_id)]
struct OrderPlaced {
    order_id: Uuid,
}

/// Why an order is not accepted.
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
pub(crate) enum OrderError {
    #[error("there is no such thing as `{sku}`")]
    UnknownSku { sku: String },
    #[error("{quantity} pieces cannot be ordered")]
    Quantity { quantity: i64 },
    /// Not final: the shelf may be filled again, and the same request may then succeed.
    #[error("there are not enough of `{sku}` left")]
    SoldOut { sku: String },
    #[error("the database failed")]
    #[serde(skip)]
    Database(#[from] sqlx::Error),
    #[error("the event could not be published")]
    #[serde(skip)]
    Publish(#[from] PublishError),
}

impl OrderError {
    /// Errors that are the answer for good, whatever happens later.
    fn is_final(&self) -> bool {
        matches!(self, Self::UnknownSku { .. } | Self::Quantity { .. })
    }
}

/// How long placing an order takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace(pub(crate) Duration);

/// Takes effect once for each request id.
#[idempotent_command(key = request_id, store_error = OrderError::is_final)]
async fn place_order(
    order: PlaceOrder,
    cx: &mut HandlerContext<'_>,
    State(pace): State<Pace>,
) -> Result<OrderReceipt, OrderError> {
    let PlaceOrder {
        sku,
        quantity,
        note,
        ..
    } = order;
    if !(1..=100).contains(&quantity) {
        return Err(OrderError::Quantity { quantity });
    }
    tokio::time::sleep(pace.0).await;
    take_from_shelf(cx, &sku, quantity).await?;
    // Not the client's: a retry gets this one again, since it gets the stored receipt.
    let order_id = Uuid::now_v7();
    sqlx::query("INSERT INTO orders (order_id, sku, quantity, note) VALUES ($1, $2, $3, $4)")
        .bind(order_id)
        .bind(&sku)
        .bind(quantity)
        .bind(note)
        .execute(cx.conn())
        .await?;
    cx.publish(&OrderPlaced { order_id }).await?;
    Ok(OrderReceipt {
        order_id,
        sku,
        quantity,
    })
}

async fn take_from_shelf(
    cx: &mut HandlerContext<'_>,
    sku: &str,
    quantity: i64,
) -> Result<(), OrderError> {
    let left: Option<i64> = sqlx::query_scalar(
        "UPDATE stock SET available = available - $2 WHERE sku = $1 RETURNING available",
    )
    .bind(sku)
    .bind(quantity)
    .fetch_optional(cx.conn())
    .await?;
    let sku = sku.to_owned();
    match left {
        None => Err(OrderError::UnknownSku { sku }),
        Some(left) if left < 0 => Err(OrderError::SoldOut { sku }),
        Some(_) => Ok(()),
    }
}

/// Runs after the commit, in a transaction of its own.
#[handler]
async fn pack_order(event: OrderPlaced, cx: &mut HandlerContext<'_>) -> Result<(), BoxError> {
    sqlx::query("UPDATE orders SET packed = packed + 1 WHERE order_id = $1")
        .bind(event.order_id)
        .execute(cx.conn())
        .await?;
    Ok(())
}
