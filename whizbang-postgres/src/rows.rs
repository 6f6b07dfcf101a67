//! Rows of our functions as the runtime's types.

use chrono::{DateTime, Utc};
use sqlx::{Row, postgres::PgRow};
use uuid::Uuid;
use whizbang::{
    Envelope, Headers, MessageKind, Payload, StreamKey,
    store::{DeadLetter, Lease, OutboxRow, StoreReport, Work},
};

/// A row of `claim_work` or `next_in_stream`.
pub(crate) fn claimed(row: &PgRow, token: Uuid) -> Result<Work, sqlx::Error> {
    Ok(Work {
        attempts: count(row.try_get("attempts")?),
        losses: count(row.try_get("losses")?),
        ..delivered(row, token)?
    })
}

/// A handed-over row of `deliver_outbox_locally`: it brings its payload and was never tried.
pub(crate) fn delivered(row: &PgRow, token: Uuid) -> Result<Work, sqlx::Error> {
    let metadata: String = row.try_get("metadata")?;
    Ok(Work {
        lease: Lease {
            message_id: row.try_get("message_id")?,
            handler: row.try_get("handler_name")?,
            lane: row.try_get("lane")?,
            stream_id: row.try_get("stream_id")?,
            token,
        },
        message_type: row.try_get("message_type")?,
        payload: Payload::from_stored(row.try_get::<String, _>("event_data")?),
        headers: Headers::from_json(&metadata),
        sequence: row.try_get("sequence")?,
        correlation_id: row.try_get("correlation_id")?,
        causation_id: row.try_get("causation_id")?,
        attempts: 0,
        losses: 0,
        received_at: row.try_get("received_at")?,
    })
}

/// Counts are never negative; a check in the table says so.
fn count(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

/// What became of one stored message.
pub(crate) struct Stored {
    pub(crate) message_id: Uuid,
    pub(crate) outcome: String,
    pub(crate) leased: bool,
}

pub(crate) fn stored(row: &PgRow) -> Result<Stored, sqlx::Error> {
    Ok(Stored {
        message_id: row.try_get("message_id")?,
        outcome: row.try_get("outcome")?,
        leased: row.try_get::<Option<bool>, _>("leased")?.unwrap_or(false),
    })
}

/// Adds one row's outcome to a report; a message with several handlers counts once.
pub(crate) fn count_outcome(
    report: &mut StoreReport,
    stored: &Stored,
    seen: &mut std::collections::HashSet<Uuid>,
) {
    match stored.outcome.as_str() {
        "stored" => {
            if seen.insert(stored.message_id) {
                report.stored += 1;
            }
            if !stored.leased {
                report.waiting += 1;
            }
        }
        "duplicate" => report.duplicates += 1,
        "conflict" => {
            report.duplicates += 1;
            report.conflicts.push(stored.message_id);
        }
        "too_old" => report.too_old += 1,
        "unhandled" => report.unhandled += 1,
        _ => report.dropped += 1,
    }
}

/// A handed-over row of `store_inbox_messages`, whose payload the caller still has.
pub(crate) fn handed_over(
    row: &PgRow,
    token: Uuid,
    envelope: &Envelope,
) -> Result<Work, sqlx::Error> {
    Ok(Work {
        lease: Lease {
            message_id: envelope.id,
            handler: row.try_get("handler_name")?,
            lane: row.try_get("lane")?,
            stream_id: row.try_get("stream_id")?,
            token,
        },
        message_type: envelope.message_type.clone(),
        payload: envelope.payload.clone(),
        headers: envelope.headers.clone(),
        sequence: row.try_get("sequence")?,
        correlation_id: envelope.correlation_id,
        causation_id: envelope.causation_id,
        attempts: 0,
        losses: 0,
        received_at: None,
    })
}

/// A row of `claim_outbox`.
pub(crate) fn outbox(row: &PgRow) -> Result<OutboxRow, sqlx::Error> {
    let metadata: String = row.try_get("metadata")?;
    let mut headers = Headers::from_json(&metadata);
    headers.sent_at = row.try_get("sent_at")?;
    let stream_id: Option<Uuid> = row.try_get("stream_id")?;
    let is_command: bool = row.try_get("is_command")?;
    Ok(OutboxRow {
        envelope: Envelope {
            id: row.try_get("message_id")?,
            message_type: row.try_get("message_type")?,
            kind: if is_command {
                MessageKind::Command
            } else {
                MessageKind::Event
            },
            payload: Payload::from_stored(row.try_get::<String, _>("event_data")?),
            stream: stream_id.map(|id| StreamKey::from_parts(id, headers.stream.clone())),
            correlation_id: row.try_get("correlation_id")?,
            causation_id: row.try_get("causation_id")?,
            headers,
        },
        attempts: count(row.try_get("attempts")?),
        created_at: row.try_get::<DateTime<Utc>, _>("created_at")?,
    })
}

/// A row of `wh_dead_letters`.
pub(crate) fn dead_letter(row: &PgRow) -> Result<DeadLetter, sqlx::Error> {
    Ok(DeadLetter {
        id: row.try_get("id")?,
        source: row.try_get("source")?,
        message_id: row.try_get("message_id")?,
        handler: row.try_get("handler_name")?,
        destination: row.try_get("destination")?,
        message_type: row.try_get("message_type")?,
        payload: row.try_get("payload")?,
        raw: row.try_get("raw_data")?,
        attempts: count(row.try_get("attempts")?),
        reason: row.try_get("reason")?,
        error: row.try_get("error")?,
        parked: row.try_get("parked")?,
        died_at: row.try_get("died_at")?,
    })
}
