//! What a web handler does: everything of the dispatcher may be awaited in a spawned task.

use serde::{Deserialize, Serialize};
use sqlx::{Postgres, Transaction};
use whizbang::{Command, Event};
use whizbang_postgres::Dispatcher;

#[derive(Serialize, Deserialize, Event)]
#[message(name = "ui.order_placed")]
struct OrderPlaced {
    number: u32,
}

#[derive(Serialize, Deserialize, Command)]
#[message(name = "ui.place_order", reply = u32)]
struct PlaceOrder {
    number: u32,
}

async fn insert(tx: &mut Transaction<'_, Postgres>, customer: &str) -> sqlx::Result<u32> {
    sqlx::query("SELECT $1")
        .bind(customer)
        .execute(&mut **tx)
        .await?;
    Ok(1)
}

async fn in_a_transaction_of_ours(dispatcher: Dispatcher, name: String) -> anyhow::Result<u32> {
    dispatcher
        .transaction(async |tx| {
            let number = insert(tx, &name).await?;
            dispatcher.publish(tx, &OrderPlaced { number }).await?;
            anyhow::Ok(number)
        })
        .await
}

async fn in_a_transaction_of_yours(
    dispatcher: Dispatcher,
    pool: sqlx::PgPool,
) -> anyhow::Result<()> {
    let mut tx = pool.begin().await?;
    let number = insert(&mut tx, "somebody").await?;
    dispatcher.publish(&mut tx, &OrderPlaced { number }).await?;
    dispatcher
        .publish_all(&mut tx, &[OrderPlaced { number }])
        .await?;
    dispatcher.send(&mut tx, &PlaceOrder { number }).await?;
    tx.commit().await?;
    Ok(())
}

async fn executed(dispatcher: Dispatcher) -> anyhow::Result<u32> {
    Ok(dispatcher.execute(PlaceOrder { number: 1 }).await?)
}

/// Never calls `task`; that its future is `Send` and owns what it uses is what is tried.
fn can_be_spawned<F>(_task: impl FnOnce() -> F)
where
    F: Future<Output: Send> + Send + 'static,
{
}

#[test]
fn transactions_and_executions_can_be_spawned() {
    let dispatcher: fn() -> Dispatcher = || unreachable!("asked for its type only");
    let pool: fn() -> sqlx::PgPool = || unreachable!("asked for its type only");
    can_be_spawned(|| in_a_transaction_of_ours(dispatcher(), String::new()));
    can_be_spawned(|| in_a_transaction_of_yours(dispatcher(), pool()));
    can_be_spawned(|| executed(dispatcher()));
}
