//! The handlers of the order service.
//!
//! ```text
//! PlaceOrder ─▶ OrderPlaced ─▶ StockReserved ─▶ PaymentTaken ─▶ the order is paid
//!                    └──────────────┴──────────▶ OrderRejected ─▶ the goods go back
//! ```

mod mail;
mod order;
mod payment;
mod warehouse;

use uuid::Uuid;
use whizbang_postgres::HandlerContext;

pub(crate) use mail::Mailer;
pub(crate) use payment::CardTerminal;

/// How many handlers there are, so that a forgotten one keeps the service from starting.
pub(crate) const COUNT: usize = 7;

/// Adds one to what this handler has done for this order.
async fn count(cx: &mut HandlerContext<'_>, order_id: Uuid) -> Result<(), sqlx::Error> {
    let handler = &cx.metadata().handler;
    sqlx::query(include_str!("../sql/count_handled.sql"))
        .bind(handler)
        .bind(order_id)
        .execute(cx.conn())
        .await
        .map(drop)
}
