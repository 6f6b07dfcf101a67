//! The warehouse sets goods aside, and puts them back.

use whizbang::{BoxError, State, handler};
use whizbang_postgres::HandlerContext;

use super::count;
use crate::{
    catalogue,
    messages::{OrderPlaced, OrderRejected, StockReserved},
    mishaps::Mishaps,
};

/// The stream of the event is the kind of goods, so orders for one shelf come one at a time.
#[handler(backoff = "20ms..100ms")]
pub(crate) async fn reserve_stock(
    event: OrderPlaced,
    cx: &mut HandlerContext<'_>,
    State(mishaps): State<Mishaps>,
) -> Result<(), BoxError> {
    count(cx, event.order_id).await?;
    let quantity = i64::from(event.quantity);
    let taken = sqlx::query(
        "UPDATE stock SET available = available - $2 WHERE sku = $1 AND available >= $2",
    )
    .bind(&event.sku)
    .bind(quantity)
    .execute(cx.conn())
    .await?;
    if taken.rows_affected() == 0 {
        let reason = format!("`{}` is sold out", event.sku);
        cx.publish(&OrderRejected {
            order_id: event.order_id,
            reason,
        })
        .await?;
        return Ok(());
    }
    sqlx::query("INSERT INTO reservations (order_id, sku, quantity) VALUES ($1, $2, $3)")
        .bind(event.order_id)
        .bind(&event.sku)
        .bind(quantity)
        .execute(cx.conn())
        .await?;
    cx.publish(&StockReserved {
        order_id: event.order_id,
        customer: event.customer,
        cents: event.cents,
    })
    .await?;
    // A bug that no retry gets past: the message ends in the dead letters, its shelf goes on.
    if event.sku == catalogue::ANVIL {
        return Err("the shelf broke under the anvil".into());
    }
    mishaps.strike(cx.metadata(), event.order_id)?;
    Ok(())
}

/// Puts back what was set aside, if anything was.
#[handler]
pub(crate) async fn release_stock(
    event: OrderRejected,
    cx: &mut HandlerContext<'_>,
    State(mishaps): State<Mishaps>,
) -> Result<(), BoxError> {
    count(cx, event.order_id).await?;
    sqlx::query(include_str!("../sql/release_stock.sql"))
        .bind(event.order_id)
        .execute(cx.conn())
        .await?;
    mishaps.strike(cx.metadata(), event.order_id)?;
    Ok(())
}
