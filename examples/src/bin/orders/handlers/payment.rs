//! Taking money.

use whizbang::{BoxError, State, handler};
use whizbang_postgres::HandlerContext;

use super::count;
use crate::{
    catalogue,
    messages::{OrderRejected, PaymentTaken, StockReserved},
    mishaps::Mishaps,
};

/// Stands for whatever decides on a card.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CardTerminal;

impl CardTerminal {
    fn accepts(self, customer: &str) -> bool {
        !catalogue::DECLINED.contains(&customer)
    }
}

/// Books the money once; a declined card rejects the order.
#[handler(max_attempts = 6)]
pub(crate) async fn take_payment(
    event: StockReserved,
    cx: &mut HandlerContext<'_>,
    State(terminal): State<CardTerminal>,
    State(mishaps): State<Mishaps>,
) -> Result<(), BoxError> {
    count(cx, event.order_id).await?;
    let order_id = event.order_id;
    if terminal.accepts(&event.customer) {
        sqlx::query(include_str!("../sql/book_payment.sql"))
            .bind(order_id)
            .bind(&event.customer)
            .bind(event.cents)
            .execute(cx.conn())
            .await?;
        let customer = event.customer;
        cx.publish(&PaymentTaken { order_id, customer }).await?;
    } else {
        let reason = "the card was declined".to_owned();
        cx.publish(&OrderRejected { order_id, reason }).await?;
    }
    mishaps.strike(cx.metadata(), order_id)?;
    Ok(())
}
