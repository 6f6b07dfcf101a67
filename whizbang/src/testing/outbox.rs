//! The outbox: writing in the user's transaction, local delivery, relaying.

use std::{collections::HashSet, time::Duration};

use uuid::Uuid;

use super::{
    clock::{Time, later},
    flaw::Flaw,
    intake::{self, Arrival},
    locks::{Asked, Unit},
    memory::Turn,
    session::Open,
    tables::{Dead, OutboxEntry, RelayLease, Source, Tables},
    writes::Write,
};
use crate::store::{
    HandOver, LocalDelivery, OutboxDraft, OutboxRow, Refusal, Schedule, StoreResult,
};

/// Writes rows in the caller's transaction; says for each whether it is new.
pub(super) fn store(
    tables: &mut Tables,
    open: &mut Open,
    drafts: &[OutboxDraft],
    now: Time,
) -> Turn<StoreResult<Vec<bool>>> {
    for draft in drafts {
        let unit = Unit::Outbox(draft.envelope.id, draft.destination.clone());
        if let Some(holder) = tables.locks.holder(&unit, Some(open.tx)) {
            return Turn::Held(holder);
        }
    }
    let mut new = Vec::with_capacity(drafts.len());
    for draft in drafts {
        let fresh = !is_there(tables, open, draft);
        new.push(fresh);
        if !fresh {
            continue;
        }
        let unit = Unit::Outbox(draft.envelope.id, draft.destination.clone());
        if let Asked::Held(holder) = tables.locks.take(unit, open.tx) {
            return Turn::Held(holder);
        }
        open.writes.push(Write::Outbox(Box::new(OutboxEntry {
            envelope: draft.envelope.clone(),
            destination: draft.destination.clone(),
            sequence: tables.next_sequence(),
            attempts: 0,
            sent_at: None,
            scheduled_at: scheduled(draft.when, now),
            retry_at: None,
            created_at: now,
        })));
    }
    Turn::Done(Ok(new))
}

fn is_there(tables: &Tables, open: &Open, draft: &OutboxDraft) -> bool {
    let same = |entry: &OutboxEntry| {
        entry.envelope.id == draft.envelope.id && entry.destination == draft.destination
    };
    tables.outbox.values().any(same)
        || open.writes.iter().any(|write| match write {
            Write::Outbox(entry) => same(entry),
            _ => false,
        })
}

fn scheduled(when: Schedule, now: Time) -> Option<Time> {
    let time = match when {
        Schedule::Now => return None,
        Schedule::After(delay) => later(now, delay),
        Schedule::At(time) => time,
    };
    (time > now).then_some(time)
}

/// Scheduled rows that have fallen due join at the end.
fn promote(tables: &mut Tables, destination: &str, now: Time) {
    let mut due: Vec<_> = tables
        .outbox
        .values()
        .filter(|entry| entry.destination == destination)
        .filter_map(|entry| {
            let time = entry.scheduled_at.filter(|time| *time <= now)?;
            Some((time, entry.sequence))
        })
        .collect();
    due.sort();
    for (_, sequence) in due {
        if let Some(mut entry) = tables.outbox.remove(&sequence) {
            entry.scheduled_at = None;
            entry.sequence = tables.next_sequence();
            tables.outbox.insert(entry.sequence, entry);
        }
    }
}

/// Moves rows to the inbox of the same service.
pub(super) fn deliver_locally(
    tables: &mut Tables,
    destination: &str,
    limit: usize,
    hand_over: Option<&HandOver>,
    now: Time,
) -> LocalDelivery {
    promote(tables, destination, now);
    let sequences: Vec<_> = tables
        .outbox
        .values()
        .filter(|entry| entry.destination == destination && entry.scheduled_at.is_none())
        .map(|entry| entry.sequence)
        .take(limit)
        .collect();
    let keep = tables.has(Flaw::DeliversTwice);
    let mut arrivals = Vec::new();
    for sequence in &sequences {
        let Some(entry) = tables.outbox.get(sequence) else {
            continue;
        };
        arrivals.push(Arrival {
            envelope: entry.envelope.clone(),
            born_at: Some(now),
            fingerprint: None,
        });
        if !(keep && sequence % 2 == 0) {
            tables.outbox.remove(sequence);
        }
    }
    LocalDelivery {
        moved: arrivals.len() as u64,
        report: intake::store(tables, &arrivals, hand_over, now),
    }
}

/// Who asks to relay.
pub(super) struct Relay<'a> {
    pub(super) destination: &'a str,
    pub(super) token: Uuid,
    pub(super) instance: Uuid,
    pub(super) lease: Duration,
}

/// The next rows for a destination; nothing while another instance relays to it.
pub(super) fn claim(
    tables: &mut Tables,
    relay: &Relay<'_>,
    limit: usize,
    now: Time,
) -> Vec<OutboxRow> {
    let taken = tables
        .relays
        .get(relay.destination)
        .is_some_and(|held| held.token != relay.token && held.until > now);
    if taken {
        return Vec::new();
    }
    let lease = RelayLease {
        instance: relay.instance,
        token: relay.token,
        until: later(now, relay.lease),
    };
    tables.relays.insert(relay.destination.to_owned(), lease);
    promote(tables, relay.destination, now);
    let sequences = ready(tables, relay.destination, limit, now);
    sequences
        .into_iter()
        .filter_map(|sequence| {
            let entry = tables.outbox.get_mut(&sequence)?;
            let sent_at = *entry.sent_at.get_or_insert(now);
            let mut envelope = entry.envelope.clone();
            envelope.headers.sent_at = Some(sent_at);
            Some(OutboxRow {
                envelope,
                attempts: entry.attempts,
                created_at: entry.created_at,
            })
        })
        .collect()
}

/// Rows that may leave: of each stream no row leaves while an earlier one waits.
fn ready(tables: &Tables, destination: &str, limit: usize, now: Time) -> Vec<i64> {
    let mut blocked = HashSet::new();
    let mut ready = Vec::new();
    let entries = tables
        .outbox
        .values()
        .filter(|entry| entry.destination == destination && entry.scheduled_at.is_none());
    for entry in entries {
        let waits = entry.retry_at.is_some_and(|time| time > now);
        match entry.stream() {
            Some(stream) if waits || blocked.contains(&stream) => {
                blocked.insert(stream);
            }
            None if waits => {}
            _ => ready.push(entry.sequence),
        }
        if ready.len() == limit {
            break;
        }
    }
    ready
}

/// Removes rows that the transport acknowledged.
pub(super) fn complete(tables: &mut Tables, destination: &str, ids: &[Uuid]) -> u64 {
    let before = tables.outbox.len();
    tables
        .outbox
        .retain(|_, entry| entry.destination != destination || !ids.contains(&entry.envelope.id));
    (before - tables.outbox.len()) as u64
}

/// Reports rows that the transport refused; `false` if another relay has taken over.
pub(super) fn report(
    tables: &mut Tables,
    destination: &str,
    token: Uuid,
    refusals: &[Refusal],
    now: Time,
) -> bool {
    let relay = tables.relays.get(destination);
    if relay.is_none_or(|held| held.token != token) {
        return false;
    }
    for refusal in refusals {
        let found = tables.outbox.values_mut().find(|entry| {
            entry.destination == destination && entry.envelope.id == refusal.message_id
        });
        let Some(entry) = found else { continue };
        entry.attempts = entry.attempts.saturating_add(1);
        if let Some(delay) = refusal.retry {
            entry.retry_at = Some(later(now, delay));
            continue;
        }
        let sequence = entry.sequence;
        if let Some(entry) = tables.outbox.remove(&sequence) {
            tables.bury(Dead {
                attempts: entry.attempts,
                reason: "refused".to_owned(),
                error: Some(refusal.error.clone()),
                parked: false,
                died_at: now,
                source: Source::Outbox(Box::new(entry)),
            });
        }
    }
    true
}

/// Lets another instance relay at once.
pub(super) fn release(tables: &mut Tables, destination: &str, instance: Uuid) {
    if tables
        .relays
        .get(destination)
        .is_some_and(|held| held.instance == instance)
    {
        tables.relays.remove(destination);
    }
}

/// Cancels messages that are not due yet; counts messages, not rows. One that is due may have left
/// for one destination and not for another, so it is too late for it.
pub(super) fn cancel(tables: &mut Tables, ids: &[Uuid], now: Time) -> u64 {
    let is_due = |entry: &OutboxEntry| entry.scheduled_at.is_none_or(|time| time <= now);
    let of = |id: Uuid| move |entry: &&OutboxEntry| entry.envelope.id == id;
    let mut cancelled: HashSet<_> = ids.iter().copied().collect();
    cancelled.retain(|id| {
        let mut rows = tables.outbox.values().filter(of(*id)).peekable();
        rows.peek().is_some() && !rows.any(is_due)
    });
    tables
        .outbox
        .retain(|_, entry| !cancelled.contains(&entry.envelope.id));
    cancelled.len() as u64
}
