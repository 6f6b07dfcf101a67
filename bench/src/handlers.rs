//! What the framework is given to do.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use serde::{Deserialize, Serialize};
use tokio::{sync::mpsc, time::Instant};
use uuid::Uuid;
use whizbang::{BoxError, Command, Event, State, handler, idempotent_command};
use whizbang_postgres::HandlerContext;

/// A message of about 200 bytes without a stream.
#[derive(Debug, Clone, Serialize, Deserialize, Event)]
#[message(name = "bench.unordered")]
pub(crate) struct Unordered {
    pub(crate) number: i64,
    pub(crate) text: String,
}

/// The same in a stream.
#[derive(Debug, Clone, Serialize, Deserialize, Event)]
#[message(name = "bench.ordered", stream = stream)]
pub(crate) struct Ordered {
    pub(crate) stream: i64,
    pub(crate) text: String,
}

/// Handled without a transaction.
#[derive(Debug, Clone, Serialize, Deserialize, Event)]
#[message(name = "bench.plain")]
pub(crate) struct Plain {
    pub(crate) text: String,
}

/// Tells when it is handled.
#[derive(Debug, Clone, Serialize, Deserialize, Event)]
#[message(name = "bench.timed")]
pub(crate) struct Timed {}

/// An idempotent command.
#[derive(Debug, Clone, Serialize, Deserialize, Command)]
#[message(name = "bench.do_once")]
pub(crate) struct DoOnce {
    pub(crate) key: Uuid,
    pub(crate) text: String,
}

/// Messages handled without a transaction so far.
pub(crate) type Handled = Arc<AtomicUsize>;
/// Where timed messages report to.
pub(crate) type Reached = mpsc::UnboundedSender<Instant>;

#[handler]
pub(crate) async fn insert_unordered(
    event: Unordered,
    cx: &mut HandlerContext<'_>,
) -> Result<(), BoxError> {
    insert(cx, &event.text).await
}

#[handler]
pub(crate) async fn insert_ordered(
    event: Ordered,
    cx: &mut HandlerContext<'_>,
) -> Result<(), BoxError> {
    insert(cx, &event.text).await
}

#[handler]
pub(crate) async fn count(event: Plain, State(handled): State<Handled>) -> Result<(), BoxError> {
    handled.fetch_add(event.text.len().min(1), Ordering::Relaxed);
    Ok(())
}

#[handler]
pub(crate) async fn reach(_event: Timed, State(reached): State<Reached>) -> Result<(), BoxError> {
    reached.send(Instant::now())?;
    Ok(())
}

#[idempotent_command(key = key)]
pub(crate) async fn do_once(command: DoOnce, cx: &mut HandlerContext<'_>) -> Result<(), BoxError> {
    insert(cx, &command.text).await
}

async fn insert(cx: &mut HandlerContext<'_>, text: &str) -> Result<(), BoxError> {
    sqlx::query("INSERT INTO effects (text) VALUES ($1)")
        .bind(text)
        .execute(cx.conn())
        .await?;
    Ok(())
}
