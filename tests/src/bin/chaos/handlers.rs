//! The handlers of both services. Each writes its effect first and goes wrong afterwards, so that
//! whatever is not undone is seen.

use sqlx::PgPool;
use whizbang::{BoxError, HandlerError, State, handler, idempotent_command};
use whizbang_postgres::HandlerContext;

use super::{
    messages::{Bomb, Credited, Debited, Mishap, Noticed, Receipt, Transfer},
    port::Line,
};

/// What handlers panic with; kept out of the output.
pub(crate) const PANIC: &str = "the plan says panic";

/// Writes what happened and gives the number of the row.
async fn effect(
    cx: &mut HandlerContext<'_>,
    account: i64,
    place: i64,
    number: i64,
) -> Result<i64, sqlx::Error> {
    let handler = cx.metadata().handler.clone();
    sqlx::query_scalar(
        "INSERT INTO effects (handler, account, place, number) VALUES ($1, $2, $3, $4) RETURNING id",
    )
    .bind(handler)
    .bind(account)
    .bind(place)
    .bind(number)
    .fetch_one(cx.conn())
    .await
}

async fn pay(cx: &mut HandlerContext<'_>, account: i64, cents: i64) -> Result<(), sqlx::Error> {
    sqlx::query("UPDATE accounts SET balance = balance + $2 WHERE account = $1")
        .bind(account)
        .bind(cents)
        .execute(cx.conn())
        .await
        .map(drop)
}

/// Locks the row that owns a stream, and takes the next place in it.
async fn next_place(
    cx: &mut HandlerContext<'_>,
    kind: &str,
    account: i64,
) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar(
        "UPDATE places SET last = last + 1 WHERE kind = $1 AND account = $2 RETURNING last",
    )
    .bind(kind)
    .bind(account)
    .fetch_one(cx.conn())
    .await
}

/// Goes wrong if the plan wants it so.
async fn strike(line: &Line, transfer: &Transfer, handler: &str) -> Result<(), BoxError> {
    let planned = transfer.trouble.as_ref();
    let Some(trouble) = planned.filter(|trouble| trouble.handler == handler) else {
        return Ok(());
    };
    match trouble.mishap {
        Mishap::FailAlways => Err("the plan says fail, always".into()),
        Mishap::Permanent => Err(HandlerError::permanent("the plan says never").into()),
        _ if !line.may_strike(transfer.number).await? => Ok(()),
        Mishap::Fail => Err("the plan says fail".into()),
        Mishap::Panic => std::panic::panic_any(PANIC),
        Mishap::Hang => std::future::pending().await,
        Mishap::Abort => std::process::abort(),
    }
}

/// bank: takes the money, once for each id.
#[idempotent_command(key = id)]
pub(crate) async fn transfer(
    command: Transfer,
    cx: &mut HandlerContext<'_>,
    State(line): State<Line>,
) -> Result<Receipt, BoxError> {
    pay(cx, command.from, -command.cents).await?;
    let place = next_place(cx, "debited", command.from).await?;
    let effect = effect(cx, command.from, place, command.number).await?;
    cx.publish(&Debited {
        from: command.from,
        place,
        transfer: command.clone(),
    })
    .await?;
    cx.publish(&Noticed {
        transfer: command.clone(),
    })
    .await?;
    strike(&line, &command, "transfer").await?;
    Ok(Receipt { effect })
}

/// bank: one line of an account's statement, in order.
#[handler]
pub(crate) async fn statement(
    event: Debited,
    cx: &mut HandlerContext<'_>,
    State(line): State<Line>,
) -> Result<(), BoxError> {
    effect(cx, event.from, event.place, event.transfer.number).await?;
    strike(&line, &event.transfer, "statement").await
}

/// clearing: gives the money to the other account, in the order of the first one.
#[handler]
pub(crate) async fn credit(
    event: Debited,
    cx: &mut HandlerContext<'_>,
    State(line): State<Line>,
) -> Result<(), BoxError> {
    let transfer = event.transfer;
    pay(cx, transfer.to, transfer.cents).await?;
    let place = next_place(cx, "credited", transfer.to).await?;
    effect(cx, event.from, event.place, transfer.number).await?;
    cx.publish(&Credited {
        to: transfer.to,
        place,
        transfer: transfer.clone(),
    })
    .await?;
    strike(&line, &transfer, "credit").await
}

/// clearing: counts what an account was given, in order.
#[handler]
pub(crate) async fn tally(
    event: Credited,
    cx: &mut HandlerContext<'_>,
    State(line): State<Line>,
) -> Result<(), BoxError> {
    effect(cx, event.to, event.place, event.transfer.number).await?;
    strike(&line, &event.transfer, "tally").await
}

/// bank: the end of a transfer, heard back from the other service, in order.
#[handler]
pub(crate) async fn settle(
    event: Credited,
    cx: &mut HandlerContext<'_>,
    State(line): State<Line>,
) -> Result<(), BoxError> {
    effect(cx, event.to, event.place, event.transfer.number).await?;
    strike(&line, &event.transfer, "settle").await
}

/// clearing: takes note, in no order.
#[handler]
pub(crate) async fn notice(
    event: Noticed,
    cx: &mut HandlerContext<'_>,
    State(line): State<Line>,
) -> Result<(), BoxError> {
    effect(cx, 0, 0, event.transfer.number).await?;
    strike(&line, &event.transfer, "notice").await
}

/// bank: holds no transaction, so it is called at least once.
#[handler]
pub(crate) async fn mail(event: Noticed, State(pool): State<PgPool>) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO mails VALUES ($1, 1) ON CONFLICT (number) DO UPDATE SET times = mails.times + 1",
    )
    .bind(event.transfer.number)
    .execute(&pool)
    .await
    .map(drop)
}

/// bank: kills its process.
#[handler(max_attempts = 3)]
pub(crate) async fn bomb(event: Bomb, cx: &mut HandlerContext<'_>) -> Result<(), BoxError> {
    effect(cx, 0, 0, event.number).await?;
    std::process::abort()
}
