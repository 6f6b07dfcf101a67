//! Handlers that only the tests of faults need.

use whizbang::{BoxError, State, handler, idempotent_command};
use whizbang_postgres::HandlerContext;

use crate::{
    Burst, Noted, PayReceipt, Ping, Script, Stepped, Withdraw,
    service::{effect, play},
};

/// Publishes as many events as it is told to.
#[handler]
pub async fn emit_many(burst: Burst, cx: &mut HandlerContext<'_>) -> Result<(), BoxError> {
    effect(cx, "emit_many", "", burst.count).await?;
    for number in 0..burst.count {
        cx.publish(&Noted { number }).await?;
    }
    Ok(())
}

/// Calls something outside of the database after it has done what the script says.
#[handler]
pub async fn outside_after(
    ping: Ping,
    cx: &mut HandlerContext<'_>,
    State(script): State<Script>,
) -> Result<(), BoxError> {
    effect(cx, "outside_after", "", ping.number).await?;
    play(&script, cx, ping.number).await?;
    script.called_outside();
    Ok(())
}

/// A handler that must never run twice at once in a process.
#[handler(concurrency = 1)]
pub async fn narrow(
    step: Stepped,
    cx: &mut HandlerContext<'_>,
    State(script): State<Script>,
) -> Result<(), BoxError> {
    let _at_work = script.at_work();
    effect(cx, "narrow", &step.stream, step.number).await?;
    play(&script, cx, step.number).await
}

/// Writes one payment for each request of an account.
#[idempotent_command(key = (account.branch, account.number, request))]
pub async fn withdraw(
    command: Withdraw,
    cx: &mut HandlerContext<'_>,
) -> Result<PayReceipt, BoxError> {
    let row: i64 = sqlx::query_scalar("INSERT INTO payments (cents) VALUES ($1) RETURNING id")
        .bind(command.cents)
        .fetch_one(cx.conn())
        .await?;
    Ok(PayReceipt { row })
}
