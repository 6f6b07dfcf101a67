//! What ended for good, and the ways back.

use super::{
    clock::Time,
    intake::{self, Offer},
    tables::{Dead, Gate, InboxRow, OutboxEntry, Source, Tables},
};
use crate::{
    Envelope,
    store::{DeadLetter, Requeued},
};

/// Dead letters with a number above `after`, oldest first.
pub(super) fn list(tables: &Tables, after: i64, limit: usize) -> Vec<DeadLetter> {
    tables
        .dead
        .range(after.saturating_add(1)..)
        .take(limit)
        .map(|(id, dead)| letter(*id, dead))
        .collect()
}

fn letter(id: i64, dead: &Dead) -> DeadLetter {
    let mut letter = DeadLetter {
        id,
        source: "inbox".to_owned(),
        message_id: None,
        handler: None,
        destination: None,
        message_type: None,
        payload: None,
        raw: None,
        attempts: dead.attempts,
        reason: dead.reason.clone(),
        error: dead.error.clone(),
        parked: dead.parked,
        died_at: dead.died_at,
    };
    match &dead.source {
        Source::Row(row) => {
            letter.message_id = Some(row.id);
            letter.handler = Some(row.handler.clone());
            letter.message_type = Some(row.message_type.clone());
            letter.payload = Some(row.payload.as_str().to_owned());
        }
        Source::Message(envelope) => {
            letter.message_id = Some(envelope.id);
            letter.message_type = Some(envelope.message_type.clone());
            letter.payload = Some(envelope.payload.as_str().to_owned());
        }
        Source::Outbox(entry) => {
            let envelope = &entry.envelope;
            letter.source = "outbox".to_owned();
            letter.message_id = Some(envelope.id);
            letter.destination = Some(entry.destination.clone());
            letter.message_type = Some(envelope.message_type.clone());
            letter.payload = Some(envelope.payload.as_str().to_owned());
        }
        Source::Poison(poison) => {
            letter.source = "transport".to_owned();
            letter.message_id = poison.message_id;
            letter.message_type.clone_from(&poison.message_type);
            letter.raw = Some(poison.raw.clone());
        }
    }
    letter
}

/// Puts dead letters back to work.
pub(super) fn requeue(tables: &mut Tables, ids: &[i64], now: Time) -> Vec<Requeued> {
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    ids.dedup();
    ids.into_iter()
        .map(|id| {
            let outcome = match tables.dead.remove(&id) {
                None => "gone",
                Some(dead) => match bring_back(tables, &dead, now) {
                    Ok(()) => "requeued",
                    Err(why) => {
                        tables.dead.insert(id, dead);
                        why
                    }
                },
            };
            Requeued {
                id,
                outcome: outcome.to_owned(),
            }
        })
        .collect()
}

fn bring_back(tables: &mut Tables, dead: &Dead, now: Time) -> Result<(), &'static str> {
    match &dead.source {
        Source::Row(row) if !tables.has_handler(&row.handler) => return Err("unhandled"),
        Source::Row(row) if dead.parked => {
            let row = fresh(row, row.sequence, now);
            if let Some(gate) = gate_of(tables, &row) {
                gate.due = now;
            }
            tables.insert_row(row);
        }
        Source::Row(row) => {
            let sequence = tables.next_sequence();
            let row = fresh(row, sequence, now);
            put(tables, vec![row], now);
        }
        Source::Message(envelope) => fan_out(tables, envelope, now)?,
        Source::Outbox(entry) => {
            let sequence = tables.next_sequence();
            let entry = OutboxEntry {
                sequence,
                attempts: 0,
                retry_at: None,
                scheduled_at: None,
                ..(**entry).clone()
            };
            tables.outbox.insert(sequence, entry);
        }
        Source::Poison(_) => return Err("not_requeueable"),
    }
    Ok(())
}

fn fan_out(tables: &mut Tables, envelope: &Envelope, now: Time) -> Result<(), &'static str> {
    let listeners = intake::listeners(tables, &envelope.message_type, now);
    if listeners.is_empty() {
        return Err("unhandled");
    }
    let rows = intake::rows_for(tables, envelope, &listeners, now);
    put(tables, rows, now);
    Ok(())
}

fn put(tables: &mut Tables, rows: Vec<InboxRow>, now: Time) {
    let mut waiting = 0;
    intake::place(tables, rows, &mut Offer::new(None), now, &mut waiting);
}

fn fresh(row: &InboxRow, sequence: i64, now: Time) -> InboxRow {
    InboxRow {
        sequence,
        attempts: 0,
        losses: 0,
        started: false,
        due: row.stream.is_none().then_some(now),
        token: None,
        instance: None,
        received_at: now,
        ..row.clone()
    }
}

fn gate_of<'t>(tables: &'t mut Tables, row: &InboxRow) -> Option<&'t mut Gate> {
    let key = (row.lane.clone(), row.stream?);
    let gate = tables.gates.entry(key).or_insert(Gate {
        due: super::clock::NEVER,
        token: None,
        instance: None,
    });
    Some(gate)
}

/// Throws dead letters away; a parked stream goes on.
pub(super) fn discard(tables: &mut Tables, ids: &[i64], now: Time) -> u64 {
    let mut discarded = 0;
    for id in ids {
        let Some(dead) = tables.dead.remove(id) else {
            continue;
        };
        discarded += 1;
        if let (true, Source::Row(row)) = (dead.parked, &dead.source) {
            unpark(tables, row, now);
        }
    }
    discarded
}

fn unpark(tables: &mut Tables, row: &InboxRow, now: Time) {
    let Some(stream) = row.stream else { return };
    let key = (row.lane.clone(), stream);
    if tables.stream_is_empty(&row.lane, stream) {
        tables.gates.remove(&key);
    } else if let Some(gate) = tables.gates.get_mut(&key) {
        gate.due = now;
    }
}

/// The message id that a dead letter keeps from being forgotten.
pub(super) fn pins(dead: &Dead) -> Option<uuid::Uuid> {
    match &dead.source {
        Source::Row(row) => Some(row.id),
        Source::Message(envelope) => Some(envelope.id),
        Source::Outbox(entry) => Some(entry.envelope.id),
        Source::Poison(poison) => poison.message_id,
    }
}
