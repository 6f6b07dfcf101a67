//! Streams at work: completing a row, taking the next ones, giving the stream back.

use std::time::Duration;

use uuid::Uuid;

use super::{
    clock::{Time, later},
    flaw::Flaw,
    locks::Unit,
    memory::Turn,
    session::Open,
    tables::Tables,
    writes::Write,
};
use crate::store::{Completion, Isolation, Lease, StoreResult, Work};

/// Completes a row inside the handler's transaction: its lock first, then a look at the lease.
pub(super) fn complete(
    tables: &mut Tables,
    open: &mut Open,
    lease: &Lease,
    last: bool,
) -> Turn<StoreResult<Completion>> {
    if open.fence != Some(lease.token) {
        return Turn::Done(Ok(Completion::Unfenced));
    }
    let unit = unit_of(lease);
    if let Some(holder) = tables.locks.holder(&unit, Some(open.tx)) {
        return Turn::Held(holder);
    }
    if !holds(tables, lease) || is_done(open, lease) {
        return Turn::Done(Ok(missing(tables, open, lease)));
    }
    tables.locks.take(unit.clone(), open.tx);
    open.writes.push(done(lease));
    let Some(stream) = lease.stream_id else {
        return Turn::Done(Ok(Completion::Done));
    };
    if !last || open.isolation != Isolation::ReadCommitted || goes_on(tables, open, lease, stream) {
        return Turn::Done(Ok(Completion::More));
    }
    tables.locks.close(&unit);
    open.writes.push(Write::CloseGate {
        lane: lease.lane.clone(),
        stream,
    });
    Turn::Done(Ok(Completion::Done))
}

fn done(lease: &Lease) -> Write {
    Write::Complete {
        id: lease.message_id,
        handler: lease.handler.clone(),
    }
}

fn missing(tables: &Tables, open: &mut Open, lease: &Lease) -> Completion {
    if tables.has(Flaw::CompletesMissingRows) {
        open.writes.push(done(lease));
        return Completion::Done;
    }
    Completion::Lost
}

/// Whether this transaction has completed the row already.
fn is_done(open: &Open, lease: &Lease) -> bool {
    open.writes.iter().any(|write| match write {
        Write::Complete { id, handler } => *id == lease.message_id && *handler == lease.handler,
        _ => false,
    })
}

fn goes_on(tables: &Tables, open: &Open, lease: &Lease, stream: Uuid) -> bool {
    tables.stream_rows(&lease.lane, stream).any(|row| {
        !open.writes.iter().any(|write| match write {
            Write::Complete { id, handler } => *id == row.id && *handler == row.handler,
            _ => false,
        })
    })
}

/// What a lease is held on.
pub(super) fn unit_of(lease: &Lease) -> Unit {
    match lease.stream_id {
        Some(stream) => Unit::Gate(lease.lane.clone(), stream),
        None => Unit::Row(lease.message_id, lease.handler.clone()),
    }
}

/// Whether the row is there and its lease, or that of its stream, still stands.
pub(super) fn holds(tables: &mut Tables, lease: &Lease) -> bool {
    let any = tables.has(Flaw::CompletesUnderAnyToken);
    let Some(row) = tables.row(lease.message_id, &lease.handler) else {
        return false;
    };
    match row.stream {
        None => any || row.token == Some(lease.token),
        Some(stream) => {
            any || tables
                .gate_under(&lease.lane, stream, lease.token)
                .is_some()
        }
    }
}

/// The next rows of a stream whose lease the caller holds; an empty stream is closed, one that
/// goes on with a handler the caller lacks is given back.
pub(super) fn next(
    tables: &mut Tables,
    held: &Lease,
    lease: Duration,
    run: usize,
    handlers: &[String],
    now: Time,
) -> Turn<Vec<Work>> {
    let Some(stream) = held.stream_id else {
        return Turn::Done(Vec::new());
    };
    if let Some(holder) = tables.locks.holder(&unit_of(held), None) {
        return Turn::Held(holder);
    }
    let works: Vec<_> = tables
        .stream_rows(&held.lane, stream)
        .take(run)
        .take_while(|row| handlers.contains(&row.handler))
        .map(|row| row.work(held.token))
        .collect();
    let empty = tables.stream_is_empty(&held.lane, stream);
    let Some(gate) = tables.gate_under(&held.lane, stream, held.token) else {
        return Turn::Done(Vec::new());
    };
    if !works.is_empty() {
        gate.due = later(now, lease);
        return Turn::Done(works);
    }
    gate.due = now;
    gate.token = None;
    gate.instance = None;
    if empty {
        tables.gates.remove(&(held.lane.clone(), stream));
    }
    Turn::Done(works)
}

/// Gives streams back: empty ones are closed, the others are due now.
pub(super) fn close(tables: &mut Tables, held: &[Lease], now: Time) -> Turn<()> {
    for lease in held {
        if let Some(holder) = tables.locks.holder(&unit_of(lease), None) {
            return Turn::Held(holder);
        }
    }
    for lease in held {
        let Some(stream) = lease.stream_id else {
            continue;
        };
        let empty = tables.stream_is_empty(&lease.lane, stream);
        let Some(gate) = tables.gate_under(&lease.lane, stream, lease.token) else {
            continue;
        };
        gate.due = now;
        gate.token = None;
        gate.instance = None;
        if empty {
            tables.gates.remove(&(lease.lane.clone(), stream));
        }
    }
    Turn::Done(())
}
