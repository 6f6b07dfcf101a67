//! The order itself: accepted once, then paid or rejected.

use uuid::Uuid;
use whizbang::{BoxError, HandlerError, State, handler, idempotent_command};
use whizbang_postgres::HandlerContext;

use super::count;
use crate::{
    catalogue,
    messages::{OrderPlaced, OrderReceipt, OrderRejected, PaymentTaken, PlaceOrder},
    mishaps::Mishaps,
};

/// Why an order cannot be accepted; trying again would not help.
#[derive(Debug, thiserror::Error)]
enum Unacceptable {
    #[error("the order has the nil id")]
    NilId,
    #[error("the customer `{0}` is no name")]
    Customer(String),
    #[error("there is no such thing as `{0}`")]
    Sku(String),
    #[error("{0} pieces cannot be ordered")]
    Quantity(u32),
}

/// Checks an order and says what it costs.
fn price(order: &PlaceOrder) -> Result<i64, Unacceptable> {
    if order.order_id.is_nil() {
        return Err(Unacceptable::NilId);
    }
    if order.customer.is_empty() || order.customer.chars().any(char::is_control) {
        return Err(Unacceptable::Customer(order.customer.clone()));
    }
    if !(1..=catalogue::MAX_QUANTITY).contains(&order.quantity) {
        return Err(Unacceptable::Quantity(order.quantity));
    }
    let item = catalogue::find(&order.sku).ok_or_else(|| Unacceptable::Sku(order.sku.clone()))?;
    Ok(item.cents * i64::from(order.quantity))
}

/// Takes effect once for each order id, however often and under however many message ids it is
/// asked for.
#[idempotent_command(key = order_id, timeout = "10s")]
pub(crate) async fn place_order(
    order: PlaceOrder,
    cx: &mut HandlerContext<'_>,
    State(mishaps): State<Mishaps>,
) -> Result<OrderReceipt, BoxError> {
    let cents = price(&order).map_err(HandlerError::permanent)?;
    count(cx, order.order_id).await?;
    sqlx::query(
        "INSERT INTO orders (order_id, customer, sku, quantity, cents) VALUES ($1, $2, $3, $4, $5)",
    )
    .bind(order.order_id)
    .bind(&order.customer)
    .bind(&order.sku)
    .bind(i64::from(order.quantity))
    .bind(cents)
    .execute(cx.conn())
    .await?;
    let order_id = order.order_id;
    cx.publish(&OrderPlaced {
        order_id,
        customer: order.customer,
        sku: order.sku,
        quantity: order.quantity,
        cents,
    })
    .await?;
    // Everything above is undone when this fails, also the event.
    mishaps.strike(cx.metadata(), order_id)?;
    Ok(OrderReceipt { order_id, cents })
}

/// Shares a lane with `reject_order`: for one order, only one of the two runs at a time.
#[handler(lane = "order_state")]
pub(crate) async fn confirm_order(
    event: PaymentTaken,
    cx: &mut HandlerContext<'_>,
) -> Result<(), BoxError> {
    count(cx, event.order_id).await?;
    set_state(cx, event.order_id, "paid").await
}

/// The order ends here; the goods go back by `release_stock`.
#[handler(lane = "order_state")]
pub(crate) async fn reject_order(
    event: OrderRejected,
    cx: &mut HandlerContext<'_>,
) -> Result<(), BoxError> {
    count(cx, event.order_id).await?;
    set_state(cx, event.order_id, "rejected").await
}

async fn set_state(
    cx: &mut HandlerContext<'_>,
    order_id: Uuid,
    state: &str,
) -> Result<(), BoxError> {
    let updated =
        sqlx::query("UPDATE orders SET state = $2 WHERE order_id = $1 AND state = 'placed'")
            .bind(order_id)
            .bind(state)
            .execute(cx.conn())
            .await?;
    if updated.rows_affected() == 1 {
        Ok(())
    } else {
        Err(format!("order {order_id} is not waiting for its outcome").into())
    }
}
