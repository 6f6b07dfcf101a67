//! Claiming due work.

use uuid::Uuid;

use super::{
    clock::{Time, later},
    flaw::Flaw,
    locks::Unit,
    tables::{Gate, InboxRow, Tables},
};
use crate::store::{ClaimRequest, Room, Work};

/// Leases due work of the handlers that the request has room for.
pub(super) fn claim(tables: &mut Tables, request: &ClaimRequest, now: Time) -> Vec<Work> {
    hush(tables, request, now);
    let mut claim = Claim {
        request,
        room: request.room.clone(),
        left: request.limit,
        now,
        works: Vec::new(),
    };
    for key in due_gates(tables, &claim) {
        claim.gate(tables, key);
    }
    for sequence in due_rows(tables, &claim) {
        claim.row(tables, sequence);
    }
    let mut works = claim.works;
    works.sort_by_key(|work| (work.lease.stream_id, work.sequence));
    works
}

struct Claim<'a> {
    request: &'a ClaimRequest,
    room: Vec<Room>,
    left: usize,
    now: Time,
    works: Vec<Work>,
}

impl Claim<'_> {
    fn has_room(&self, handler: &str) -> bool {
        self.left > 0
            && self
                .room
                .iter()
                .any(|room| room.handler == handler && room.limit > 0)
    }

    fn take(&mut self, handler: &str) {
        self.left -= 1;
        if let Some(room) = self.room.iter_mut().find(|room| room.handler == handler) {
            room.limit = room.limit.saturating_sub(1);
        }
    }

    /// Leases a stream, and as many of its rows as there is room for.
    fn gate(&mut self, tables: &mut Tables, key: (String, Uuid)) {
        let Some(head) = tables.stream_rows(&key.0, key.1).next() else {
            tables.gates.remove(&key);
            return;
        };
        if !self.has_room(&head.handler) {
            return;
        }
        let (id, handler) = (head.id, head.handler.clone());
        let abandoned = tables
            .gates
            .get(&key)
            .is_some_and(|gate| gate.token.is_some());
        if abandoned && let Some(head) = tables.row_mut(id, &handler) {
            head.lose();
        }
        let gate = Gate {
            due: later(self.now, self.request.lease),
            token: Some(self.request.token),
            instance: Some(self.request.instance),
        };
        for row in tables
            .stream_rows(&key.0, key.1)
            .take(self.request.run)
            .cloned()
            .collect::<Vec<_>>()
        {
            if !self.has_room(&row.handler) {
                break;
            }
            self.take(&row.handler);
            self.works.push(row.work(self.request.token));
        }
        tables.gates.insert(key, gate);
    }

    /// Leases an unordered row.
    fn row(&mut self, tables: &mut Tables, sequence: i64) {
        let Some(row) = tables.inbox.get_mut(&sequence) else {
            return;
        };
        if !self.has_room(&row.handler) {
            return;
        }
        if row.token.is_some() {
            row.lose();
        }
        row.due = Some(later(self.now, self.request.lease));
        row.token = Some(self.request.token);
        row.instance = Some(self.request.instance);
        let work = row.work(self.request.token);
        self.take(&work.lease.handler);
        self.works.push(work);
    }
}

fn due_gates(tables: &Tables, claim: &Claim<'_>) -> Vec<(String, Uuid)> {
    let mut due: Vec<_> = tables
        .gates
        .iter()
        .filter(|((lane, stream), gate)| {
            gate.due <= claim.now
                && !(gate.token.is_some() && tables.has(Flaw::NeverTakesOver))
                && claim.room.iter().any(|room| room.lane == *lane)
                && !tables.locks.is_locked(&Unit::Gate(lane.clone(), *stream))
        })
        .map(|(key, gate)| (gate.due, key.clone()))
        .collect();
    due.sort();
    due.into_iter().map(|(_, key)| key).collect()
}

fn due_rows(tables: &Tables, claim: &Claim<'_>) -> Vec<i64> {
    let place = |handler: &str| {
        claim
            .room
            .iter()
            .position(|room| room.handler == handler && room.limit > 0)
    };
    let mut due: Vec<_> = tables
        .inbox
        .values()
        .filter(|row| row.stream.is_none())
        .filter(|row| !(row.token.is_some() && tables.has(Flaw::NeverTakesOver)))
        .filter_map(|row| {
            let due = row.due.filter(|due| *due <= claim.now)?;
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
