//! What is in the database at the end.

use anyhow::Context;
use serde::Deserialize;
use sqlx::{PgPool, Row, postgres::PgRow};
use uuid::Uuid;

use super::{Books, Order};

/// Reads everything that the ledger compares.
pub(super) async fn from_database(pool: &PgPool) -> anyhow::Result<Books> {
    let mut books = Books::default();
    for row in rows(
        pool,
        "SELECT order_id, customer, sku, quantity, cents, state FROM orders",
    )
    .await?
    {
        books.orders.push(Order {
            order_id: row.try_get("order_id")?,
            customer: row.try_get("customer")?,
            sku: row.try_get("sku")?,
            quantity: row.try_get("quantity")?,
            cents: row.try_get("cents")?,
            state: row.try_get("state")?,
        });
    }
    for row in rows(pool, "SELECT order_id, sku, quantity FROM reservations").await? {
        books
            .reservations
            .push((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?));
    }
    for row in rows(pool, "SELECT order_id, account, cents FROM bookings").await? {
        books
            .bookings
            .push((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?));
    }
    for row in rows(pool, "SELECT sku, available FROM stock").await? {
        books.stock.insert(row.try_get(0)?, row.try_get(1)?);
    }
    for row in rows(pool, "SELECT handler, order_id, times FROM handled").await? {
        books
            .handled
            .insert((row.try_get(0)?, row.try_get(1)?), row.try_get(2)?);
    }
    for row in rows(pool, include_str!("../sql/dead_letters.sql")).await? {
        dead_letter(&mut books, &row)?;
    }
    for row in rows(
        pool,
        "SELECT (SELECT count(*) FROM wh_inbox) + (SELECT count(*) FROM wh_outbox)",
    )
    .await?
    {
        books.waiting = row.try_get(0)?;
    }
    Ok(books)
}

async fn rows(pool: &PgPool, sql: &'static str) -> anyhow::Result<Vec<PgRow>> {
    let rows = sqlx::query(sql).fetch_all(pool).await;
    rows.with_context(|| format!("the ledger could not run `{sql}`"))
}

/// What the ledger reads of an event.
#[derive(Deserialize)]
struct OfOrder {
    order_id: Uuid,
}

/// The letters of events are known by their order, since the service chose the message id.
fn dead_letter(books: &mut Books, row: &PgRow) -> anyhow::Result<()> {
    let message_id: Option<Uuid> = row.try_get("message_id")?;
    let source: String = row.try_get("source")?;
    if source == "transport" {
        let raw: Option<Vec<u8>> = row.try_get("raw_data")?;
        books
            .dead_deliveries
            .insert((message_id, raw.unwrap_or_default()));
        return Ok(());
    }
    let reason: String = row.try_get("reason")?;
    let handler: String = row.try_get("handler_name")?;
    let is_command: bool = row.try_get("is_command")?;
    let payload: String = row.try_get("event_data")?;
    let id = if is_command {
        message_id
    } else {
        serde_json::from_str::<OfOrder>(&payload)
            .ok()
            .map(|event| event.order_id)
    };
    let letter = format!("{reason} {handler} {}", id.unwrap_or_default());
    *books.dead_messages.entry(letter).or_default() += 1;
    Ok(())
}
