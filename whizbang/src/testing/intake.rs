//! Storing messages: deduplication, the window's horizon, fan-out, hand-over.

use std::collections::HashMap;

use uuid::Uuid;

use super::{
    clock::{Time, earlier, later},
    flaw::Flaw,
    locks::Unit,
    maintenance::SUBSCRIPTION_RETENTION,
    tables::{Dead, Gate, InboxRow, Known, Listener, Source, Tables},
};
use crate::{
    Envelope, StreamKey,
    store::{HandOver, StoreReport, Work},
};

/// A message to be stored, and when it was made as far as anybody knows.
pub(super) struct Arrival {
    pub(super) envelope: Envelope,
    pub(super) born_at: Option<Time>,
    pub(super) fingerprint: Option<i64>,
}

/// What is known of a message id before its row is written.
enum Verdict {
    Fresh,
    Duplicate,
    Conflict,
}

/// Stores what is new, one row for each subscribed handler.
pub(super) fn store(
    tables: &mut Tables,
    arrivals: &[Arrival],
    hand_over: Option<&HandOver>,
    now: Time,
) -> StoreReport {
    let mut report = StoreReport::default();
    let mut rows = Vec::new();
    for arrival in arrivals {
        rows.extend(sift(tables, arrival, now, &mut report));
    }
    let mut offer = Offer::new(hand_over);
    report.leased = place(tables, rows, &mut offer, now, &mut report.waiting);
    report
}

/// Decides about one message; returns the rows to write.
fn sift(
    tables: &mut Tables,
    arrival: &Arrival,
    now: Time,
    report: &mut StoreReport,
) -> Vec<InboxRow> {
    let envelope = &arrival.envelope;
    let listeners = listeners(tables, &envelope.message_type, now);
    if listeners.is_empty() && !envelope.kind.is_command() {
        report.dropped += 1;
        return Vec::new();
    }
    match recognise(tables, arrival, now) {
        Verdict::Fresh => {}
        Verdict::Duplicate => {
            report.duplicates += 1;
            return Vec::new();
        }
        Verdict::Conflict => {
            report.duplicates += 1;
            report.conflicts.push(envelope.id);
            return Vec::new();
        }
    }
    let horizon = tables.purged_before;
    if let (Some(born_at), Some(horizon)) = (arrival.born_at, horizon)
        && born_at < horizon
    {
        report.too_old += 1;
        bury_message(tables, envelope, "too_old", now);
        return Vec::new();
    }
    if listeners.is_empty() {
        report.unhandled += 1;
        bury_message(tables, envelope, "unhandled", now);
        return Vec::new();
    }
    report.stored += 1;
    rows_for(tables, envelope, &listeners, now)
}

fn recognise(tables: &mut Tables, arrival: &Arrival, now: Time) -> Verdict {
    let differs = |known: &Known| match (known.fingerprint, arrival.fingerprint) {
        (Some(known), Some(new)) => known != new,
        _ => false,
    };
    let id = arrival.envelope.id;
    match tables.known.get(&id) {
        _ if tables.has(Flaw::ForgetsMessageIds) => Verdict::Fresh,
        Some(known) if differs(known) => Verdict::Conflict,
        Some(_) => Verdict::Duplicate,
        None => {
            let known = Known {
                first_seen: now,
                fingerprint: arrival.fingerprint,
            };
            tables.known.insert(id, known);
            Verdict::Fresh
        }
    }
}

fn bury_message(tables: &mut Tables, envelope: &Envelope, reason: &str, now: Time) {
    tables.bury(Dead {
        source: Source::Message(Box::new(envelope.clone())),
        attempts: 0,
        reason: reason.to_owned(),
        error: None,
        parked: false,
        died_at: now,
    });
}

/// Handlers that the service has for a wire name, by name.
pub(super) fn listeners(tables: &Tables, message_type: &str, now: Time) -> Vec<Listener> {
    let stale = earlier(now, SUBSCRIPTION_RETENTION);
    let mut listeners: Vec<_> = tables
        .subscriptions
        .iter()
        .filter(|line| line.message_type == message_type && line.last_seen >= stale)
        .cloned()
        .collect();
    listeners.sort_by(|one, other| one.handler.cmp(&other.handler));
    listeners
}

/// Fresh rows, one for each listener, with their places in the order.
pub(super) fn rows_for(
    tables: &mut Tables,
    envelope: &Envelope,
    listeners: &[Listener],
    now: Time,
) -> Vec<InboxRow> {
    let stream = envelope.stream.as_ref().map(StreamKey::id);
    let stream = stream.filter(|_| !tables.has(Flaw::IgnoresGates));
    listeners
        .iter()
        .map(|listener| InboxRow {
            id: envelope.id,
            handler: listener.handler.clone(),
            message_type: envelope.message_type.clone(),
            payload: envelope.payload.clone(),
            headers: envelope.headers.clone(),
            lane: listener.lane.clone(),
            stream,
            sequence: tables.next_sequence(),
            correlation_id: envelope.correlation_id,
            causation_id: envelope.causation_id,
            attempts: 0,
            losses: 0,
            started: false,
            due: Some(now),
            token: None,
            instance: None,
            received_at: now,
        })
        .collect()
}

/// Most rows of one stream that are handed over; the worker fetches the rest.
const RUN: usize = 20;

/// What the caller can take at once: so many single rows of each handler, and as many streams.
pub(super) struct Offer<'a> {
    hand_over: Option<&'a HandOver>,
    singles: HashMap<&'a str, usize>,
    streams: HashMap<&'a str, usize>,
}

impl<'a> Offer<'a> {
    pub(super) fn new(hand_over: Option<&'a HandOver>) -> Self {
        let room: HashMap<_, _> = hand_over
            .into_iter()
            .flat_map(|offer| &offer.room)
            .map(|room| (room.handler.as_str(), room.limit))
            .collect();
        Self {
            hand_over,
            singles: room.clone(),
            streams: room,
        }
    }

    /// Takes a place for a row without a stream, if there is one.
    fn single(&mut self, handler: &str) -> Option<&'a HandOver> {
        take(&mut self.singles, handler).then_some(self.hand_over)?
    }

    /// Takes a place for a stream with this head, if there is one.
    fn stream(&mut self, head: &str) -> Option<&'a HandOver> {
        take(&mut self.streams, head).then_some(self.hand_over)?
    }

    fn serves(&self, handler: &str) -> bool {
        self.streams.contains_key(handler)
    }
}

fn take(room: &mut HashMap<&str, usize>, handler: &str) -> bool {
    match room.get_mut(handler) {
        Some(room) if *room > 0 => {
            *room -= 1;
            true
        }
        _ => false,
    }
}

/// Writes fresh rows, each under the state of its stream's gate; returns those handed over.
pub(super) fn place(
    tables: &mut Tables,
    rows: Vec<InboxRow>,
    offer: &mut Offer<'_>,
    now: Time,
    waiting: &mut u64,
) -> Vec<Work> {
    let mut leased = Vec::new();
    let mut streams: Vec<((String, Uuid), Vec<InboxRow>)> = Vec::new();
    for row in rows {
        match row.stream {
            Some(stream) => {
                let key = (row.lane.clone(), stream);
                match streams.iter_mut().find(|(at, _)| *at == key) {
                    Some((_, rows)) => rows.push(row),
                    None => streams.push((key, vec![row])),
                }
            }
            None => match place_single(tables, row, offer, now) {
                Some(work) => leased.push(work),
                None => *waiting += 1,
            },
        }
    }
    for (key, rows) in streams {
        let count = rows.len() as u64;
        let run = place_stream(tables, key, rows, offer, now);
        *waiting += count - run.len() as u64;
        leased.extend(run);
    }
    leased
}

fn place_single(
    tables: &mut Tables,
    mut row: InboxRow,
    offer: &mut Offer<'_>,
    now: Time,
) -> Option<Work> {
    let handed = offer.single(&row.handler);
    if let Some(offer) = handed {
        row.due = Some(later(now, offer.lease));
        row.token = Some(offer.token);
        row.instance = Some(offer.instance);
    }
    let work = handed.map(|offer| row.work(offer.token));
    tables.insert_row(row);
    work
}

/// Rows of one stream: quiet behind the gate, which is opened if there is none.
fn place_stream(
    tables: &mut Tables,
    key: (String, Uuid),
    mut rows: Vec<InboxRow>,
    offer: &mut Offer<'_>,
    now: Time,
) -> Vec<Work> {
    let unit = Unit::Gate(key.0.clone(), key.1);
    // A gate that is being removed answers for nobody: the rows ring for themselves.
    let quiet = !tables.locks.is_closing(&unit);
    let mut run = Vec::new();
    if quiet && !tables.gates.contains_key(&key) {
        let mut gate = Gate {
            due: now,
            token: None,
            instance: None,
        };
        let head = rows
            .first()
            .filter(|_| tables.stream_is_empty(&key.0, key.1));
        if let Some(handed) = head.and_then(|head| offer.stream(&head.handler)) {
            gate.due = later(now, handed.lease);
            gate.token = Some(handed.token);
            gate.instance = Some(handed.instance);
            let ours = rows.iter().take_while(|row| offer.serves(&row.handler));
            run.extend(ours.take(RUN).map(|row| row.work(handed.token)));
        }
        tables.gates.insert(key, gate);
    }
    for row in &mut rows {
        row.due = (!quiet).then_some(now);
    }
    for row in rows {
        tables.insert_row(row);
    }
    run
}
