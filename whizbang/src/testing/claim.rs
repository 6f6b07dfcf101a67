//! Claiming due work.

use uuid::Uuid;

use super::{
    clock::{Time, later},
    flaw::Flaw,
    locks::Unit,
    tables::{Gate, InboxRow, Tables},
};
use crate::store::{ClaimRequest, Room, Work};

/// Leases due work of the handlers that the request has room for. Streams and single rows have
/// budgets of their own, so that neither waits for the other.
pub(super) fn claim(tables: &mut Tables, request: &ClaimRequest, now: Time) -> Vec<Work> {
    hush(tables, request, now);
    let mut works = claim_streams(tables, request, now);
    let mut budget = Budget::new(request);
    for sequence in due_rows(tables, request, now) {
        works.extend(lease_row(tables, request, &mut budget, sequence, now));
    }
    works.sort_by_key(|work| (work.lease.stream_id, work.sequence));
    works
}

/// How many streams or rows of each handler, and of all, may still be leased.
struct Budget {
    room: Vec<Room>,
    left: usize,
}

impl Budget {
    fn new(request: &ClaimRequest) -> Self {
        Self {
            room: request.room.clone(),
            left: request.limit,
        }
    }

    /// Takes a place for the handler, if there is one.
    fn take(&mut self, handler: &str) -> bool {
        let room = self
            .room
            .iter_mut()
            .find(|room| room.handler == handler && room.limit > 0);
        match room {
            Some(room) if self.left > 0 => {
                room.limit -= 1;
                self.left -= 1;
                true
            }
            _ => false,
        }
    }
}

fn claim_streams(tables: &mut Tables, request: &ClaimRequest, now: Time) -> Vec<Work> {
    let mut budget = Budget::new(request);
    let mut streams = Vec::new();
    for key in due_gates(tables, request, now) {
        let Some(head) = tables.stream_rows(&key.0, key.1).next() else {
            tables.gates.remove(&key);
            continue;
        };
        let (id, handler) = (head.id, head.handler.clone());
        if budget.take(&handler) {
            lease_gate(tables, request, &key, (id, &handler), now);
            streams.push(key);
        }
    }
    // Many streams share the claim's rows, but each gives at least its head.
    let share = request.limit / streams.len().max(1);
    let run = request.run.min(share.max(1));
    let mut works = Vec::new();
    for (lane, stream) in streams {
        let rows = tables.stream_rows(&lane, stream).take(run);
        let ours = rows.take_while(|row| has_room(request, &row.handler));
        works.extend(ours.map(|row| row.work(request.token)));
    }
    works
}

fn has_room(request: &ClaimRequest, handler: &str) -> bool {
    request.room.iter().any(|room| room.handler == handler)
}

fn lease_gate(
    tables: &mut Tables,
    request: &ClaimRequest,
    key: &(String, Uuid),
    head: (Uuid, &str),
    now: Time,
) {
    let gate = Gate {
        due: later(now, request.lease),
        token: Some(request.token),
        instance: Some(request.instance),
    };
    let before = tables.gates.insert(key.clone(), gate);
    let abandoned = before.is_some_and(|gate| gate.token.is_some());
    if abandoned && let Some(head) = tables.row_mut(head.0, head.1) {
        head.lose();
    }
}

fn lease_row(
    tables: &mut Tables,
    request: &ClaimRequest,
    budget: &mut Budget,
    sequence: i64,
    now: Time,
) -> Option<Work> {
    let row = tables.inbox.get_mut(&sequence)?;
    if !budget.take(&row.handler) {
        return None;
    }
    if row.token.is_some() {
        row.lose();
    }
    row.due = Some(later(now, request.lease));
    row.token = Some(request.token);
    row.instance = Some(request.instance);
    Some(row.work(request.token))
}

/// Whether a lease that ran out is left alone, which is a mistake to order.
fn is_left_alone(tables: &Tables, token: Option<Uuid>) -> bool {
    token.is_some() && tables.has(Flaw::NeverTakesOver)
}

fn due_gates(tables: &Tables, request: &ClaimRequest, now: Time) -> Vec<(String, Uuid)> {
    let mut due: Vec<_> = tables
        .gates
        .iter()
        .filter(|((lane, stream), gate)| {
            gate.due <= now
                && !is_left_alone(tables, gate.token)
                && request.room.iter().any(|room| room.lane == *lane)
                && !tables.locks.is_locked(&Unit::Gate(lane.clone(), *stream))
        })
        .map(|(key, gate)| (gate.due, key.clone()))
        .collect();
    due.sort();
    due.into_iter().map(|(_, key)| key).collect()
}

fn due_rows(tables: &Tables, request: &ClaimRequest, now: Time) -> Vec<i64> {
    let place = |handler: &str| request.room.iter().position(|room| room.handler == handler);
    let mut due: Vec<_> = tables
        .inbox
        .values()
        .filter(|row| row.stream.is_none() && !is_left_alone(tables, row.token))
        .filter_map(|row| {
            let due = row.due.filter(|due| *due <= now)?;
            let unit = Unit::Row(row.id, row.handler.clone());
            let free = !tables.locks.is_locked(&unit);
            free.then_some((place(&row.handler)?, due, row.sequence))
        })
        .collect();
    due.sort();
    due.into_iter().map(|(.., sequence)| sequence).collect()
}

/// Rows of streams that ring for themselves fall quiet behind a gate; the gate is opened if there
/// is none. While a gate is being removed they go on ringing.
fn hush(tables: &mut Tables, request: &ClaimRequest, now: Time) {
    let ringing: Vec<_> = tables
        .inbox
        .values()
        .filter(|row| row.due.is_some_and(|due| due <= now))
        .filter(|row| request.room.iter().any(|room| room.lane == row.lane))
        .filter_map(|row| Some((row.sequence, row.lane.clone(), row.stream?)))
        .collect();
    for (sequence, lane, stream) in ringing {
        if tables.locks.is_closing(&Unit::Gate(lane.clone(), stream)) {
            continue;
        }
        tables.gates.entry((lane, stream)).or_insert(Gate {
            due: now,
            token: None,
            instance: None,
        });
        if let Some(row) = tables.inbox.get_mut(&sequence) {
            fall_quiet(row);
        }
    }
}

fn fall_quiet(row: &mut InboxRow) {
    row.due = None;
}
