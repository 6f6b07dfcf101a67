//! The functions' calls, with the arguments that most tests do not care about filled in.

use chrono::{DateTime, Utc};
use sqlx::{
    FromRow, PgConnection, Row,
    postgres::{PgRow, types::PgInterval},
};
use uuid::Uuid;

use crate::support::{Outcome, exec};

pub(crate) fn interval(seconds: f64) -> PgInterval {
    PgInterval {
        months: 0,
        days: 0,
        #[expect(clippy::cast_possible_truncation, reason = "tests use small numbers")]
        microseconds: (seconds * 1e6) as i64,
    }
}

/// A message to be stored.
#[derive(Clone)]
pub(crate) struct Message {
    pub(crate) id: Uuid,
    pub(crate) kind: &'static str,
    pub(crate) command: bool,
    pub(crate) data: String,
    pub(crate) stream: Option<Uuid>,
    pub(crate) fingerprint: Option<i64>,
    pub(crate) born_at: Option<DateTime<Utc>>,
}

impl Message {
    pub(crate) fn new() -> Self {
        Self {
            id: Uuid::now_v7(),
            kind: "t",
            command: false,
            data: "{\"a\":1}".to_owned(),
            stream: None,
            fingerprint: Some(1),
            born_at: None,
        }
    }

    pub(crate) fn of(stream: Uuid) -> Self {
        Self {
            stream: Some(stream),
            ..Self::new()
        }
    }
}

/// What a store may lease to its caller.
pub(crate) struct Offer<'a> {
    pub(crate) token: Uuid,
    pub(crate) room: &'a [(&'a str, i32)],
}

#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) message_id: Uuid,
    pub(crate) outcome: String,
    pub(crate) was_newly_created: bool,
    pub(crate) handler_name: Option<String>,
    pub(crate) sequence: Option<i64>,
    pub(crate) leased: bool,
}

impl FromRow<'_, PgRow> for Stored {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            message_id: row.try_get("message_id")?,
            outcome: row.try_get("outcome")?,
            was_newly_created: row.try_get("was_newly_created")?,
            handler_name: row.try_get("handler_name")?,
            sequence: row.try_get("sequence")?,
            leased: row.try_get("leased")?,
        })
    }
}

pub(crate) const STORE: &str = "SELECT * FROM store_inbox_messages($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)";

pub(crate) async fn store(
    connection: &mut PgConnection,
    messages: &[Message],
    offer: Option<&Offer<'_>>,
) -> anyhow::Result<Vec<Stored>> {
    let nothing: Vec<Option<Uuid>> = vec![None; messages.len()];
    let room = offer.map_or(&[][..], |offer| offer.room);
    Ok(sqlx::query_as(STORE)
        .bind(messages.iter().map(|one| one.id).collect::<Vec<_>>())
        .bind(messages.iter().map(|one| one.kind).collect::<Vec<_>>())
        .bind(messages.iter().map(|one| one.command).collect::<Vec<_>>())
        .bind(
            messages
                .iter()
                .map(|one| one.data.clone())
                .collect::<Vec<_>>(),
        )
        .bind(vec!["{}"; messages.len()])
        .bind(messages.iter().map(|one| one.stream).collect::<Vec<_>>())
        .bind(&nothing)
        .bind(&nothing)
        .bind(
            messages
                .iter()
                .map(|one| one.fingerprint)
                .collect::<Vec<_>>(),
        )
        .bind(messages.iter().map(|one| one.born_at).collect::<Vec<_>>())
        .bind(offer.map(|offer| offer.token))
        .bind(offer.map(|_| Uuid::nil()))
        .bind(interval(60.0))
        .bind(room.iter().map(|room| room.0).collect::<Vec<_>>())
        .bind(room.iter().map(|room| room.1).collect::<Vec<_>>())
        .fetch_all(connection)
        .await?)
}

/// Stores without hand-over; every message must be new.
pub(crate) async fn put(connection: &mut PgConnection, messages: &[Message]) -> Outcome {
    for stored in store(connection, messages, None).await? {
        anyhow::ensure!(stored.outcome == "stored", "not stored: {stored:?}");
    }
    Ok(())
}

/// The arguments of a claim.
pub(crate) struct Claim<'a> {
    /// Handler, room, lane.
    pub(crate) room: Vec<(&'a str, i32, &'a str)>,
    pub(crate) limit: i32,
    pub(crate) run: i32,
    pub(crate) lease: f64,
    pub(crate) token: Uuid,
    pub(crate) instance: Uuid,
}

impl<'a> Claim<'a> {
    pub(crate) fn by(handlers: &[(&'a str, &'a str)]) -> Self {
        Self {
            room: handlers
                .iter()
                .map(|(handler, lane)| (*handler, 100, *lane))
                .collect(),
            limit: 100,
            run: 20,
            lease: 60.0,
            token: Uuid::now_v7(),
            instance: Uuid::nil(),
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Work {
    pub(crate) id: Uuid,
    pub(crate) handler: String,
    pub(crate) data: String,
    pub(crate) lane: String,
    pub(crate) stream: Option<Uuid>,
    pub(crate) sequence: i64,
    pub(crate) attempts: i32,
    pub(crate) losses: i32,
    pub(crate) token: Uuid,
}

fn work(row: &PgRow, token: Uuid) -> Result<Work, sqlx::Error> {
    Ok(Work {
        id: row.try_get("message_id")?,
        handler: row.try_get("handler_name")?,
        data: row.try_get("event_data")?,
        lane: row.try_get("lane")?,
        stream: row.try_get("stream_id")?,
        sequence: row.try_get("sequence")?,
        attempts: row.try_get("attempts")?,
        losses: row.try_get("losses")?,
        token,
    })
}

pub(crate) async fn claim(
    connection: &mut PgConnection,
    claim: &Claim<'_>,
) -> anyhow::Result<Vec<Work>> {
    let nothing: Vec<Option<DateTime<Utc>>> = vec![None; claim.room.len()];
    let rows = sqlx::query("SELECT * FROM claim_work($1, $2, $3, $4, $5, $6, $7, $8, $9)")
        .bind(claim.room.iter().map(|room| room.0).collect::<Vec<_>>())
        .bind(claim.room.iter().map(|room| room.1).collect::<Vec<_>>())
        .bind(claim.room.iter().map(|room| room.2).collect::<Vec<_>>())
        .bind(claim.limit)
        .bind(claim.run)
        .bind(interval(claim.lease))
        .bind(claim.token)
        .bind(claim.instance)
        .bind(nothing)
        .fetch_all(connection)
        .await?;
    Ok(rows
        .iter()
        .map(|row| work(row, claim.token))
        .collect::<Result<_, _>>()?)
}

/// What handler "h" in lane "l" finds.
pub(crate) async fn claim_h(connection: &mut PgConnection) -> anyhow::Result<Vec<Work>> {
    claim(connection, &Claim::by(&[("h", "l")])).await
}

pub(crate) async fn next(
    connection: &mut PgConnection,
    held: &Work,
    handlers: &[&str],
) -> anyhow::Result<Vec<Work>> {
    let rows = sqlx::query("SELECT * FROM next_in_stream($1, $2, $3, $4, $5, $6)")
        .bind(&held.lane)
        .bind(held.stream)
        .bind(held.token)
        .bind(interval(60.0))
        .bind(20)
        .bind(handlers)
        .fetch_all(connection)
        .await?;
    Ok(rows
        .iter()
        .map(|row| work(row, held.token))
        .collect::<Result<_, _>>()?)
}

/// Completes as the last statement of a transaction that is open on the connection.
pub(crate) async fn complete_here(
    connection: &mut PgConnection,
    work: &Work,
    last: bool,
) -> anyhow::Result<String> {
    Ok(
        sqlx::query_scalar("SELECT complete_inbox_message($1, $2, $3, $4, $5, $6)")
            .bind(work.id)
            .bind(&work.handler)
            .bind(&work.lane)
            .bind(work.stream)
            .bind(work.token)
            .bind(last)
            .fetch_one(connection)
            .await?,
    )
}

/// Opens a handler's transaction.
pub(crate) async fn begin(connection: &mut PgConnection, work: &Work) -> Outcome {
    exec(connection, "BEGIN ISOLATION LEVEL READ COMMITTED").await?;
    sqlx::query("SELECT set_config('whizbang.fence', $1, true)")
        .bind(work.token.to_string())
        .execute(connection)
        .await?;
    Ok(())
}

/// A whole handler's transaction; rolled back when the lease was lost.
pub(crate) async fn complete(
    connection: &mut PgConnection,
    work: &Work,
    last: bool,
) -> anyhow::Result<String> {
    begin(connection, work).await?;
    let answer = complete_here(connection, work, last).await?;
    let end = if answer == "lost" {
        "ROLLBACK"
    } else {
        "COMMIT"
    };
    exec(connection, end).await?;
    Ok(answer)
}

/// Reports one row; says what became of the report.
pub(crate) async fn report(
    connection: &mut PgConnection,
    work: &Work,
    action: &str,
    delay: f64,
) -> anyhow::Result<String> {
    report_parking(connection, work, action, delay, false).await
}

pub(crate) async fn report_parking(
    connection: &mut PgConnection,
    work: &Work,
    action: &str,
    delay: f64,
    park: bool,
) -> anyhow::Result<String> {
    Ok(sqlx::query_scalar(
        "SELECT outcome FROM report_failures($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
    )
    .bind(vec![work.id])
    .bind(vec![work.handler.clone()])
    .bind(vec![work.lane.clone()])
    .bind(vec![work.stream])
    .bind(vec![work.token])
    .bind(vec![action])
    .bind(vec![interval(delay)])
    .bind(vec![(action == "dead").then_some("failed")])
    .bind(vec![Some("it broke")])
    .bind(vec![park])
    .fetch_one(connection)
    .await?)
}

pub(crate) async fn close(connection: &mut PgConnection, held: &Work) -> Outcome {
    sqlx::query("SELECT close_streams($1, $2, $3)")
        .bind(vec![held.lane.clone()])
        .bind(vec![held.stream])
        .bind(vec![held.token])
        .execute(connection)
        .await?;
    Ok(())
}

pub(crate) fn ids(works: &[Work]) -> Vec<Uuid> {
    works.iter().map(|work| work.id).collect()
}

/// Makes all leases and delays run out at once.
pub(crate) const EXPIRE: &str = "UPDATE wh_inbox SET due_at = clock_timestamp() WHERE due_at IS NOT NULL; UPDATE wh_inbox_streams SET due_at = clock_timestamp() WHERE due_at <> 'infinity'";
