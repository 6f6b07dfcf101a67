//! Reports, batches of completions and renewals: everything that a lease's token fences.

use std::time::Duration;

use uuid::Uuid;

use super::{
    clock::{NEVER, Time, later},
    flaw::Flaw,
    memory::Turn,
    streams::{holds, unit_of},
    tables::{Dead, Source, Tables},
};
use crate::store::{Action, Lease, Report};

/// Reports rows that did not complete; says for each whether the lease still held.
pub(super) fn report(tables: &mut Tables, reports: &[Report], now: Time) -> Turn<Vec<bool>> {
    for report in reports {
        if let Some(holder) = tables.locks.holder(&unit_of(&report.lease), None) {
            return Turn::Held(holder);
        }
    }
    let held: Vec<_> = reports
        .iter()
        .map(|report| holds(tables, &report.lease))
        .collect();
    for (report, held) in reports.iter().zip(&held) {
        if *held {
            count(tables, report, now);
            free(tables, &report.lease, due_after(report, now));
        } else {
            // The row may be gone because its commit went through and the answer was lost: then
            // its stream must not wait for the lease.
            free(tables, &report.lease, now);
        }
    }
    Turn::Done(held)
}

fn due_after(report: &Report, now: Time) -> Time {
    match &report.action {
        Action::Retry(delay) | Action::Snooze(delay) => later(now, *delay),
        Action::Dead { park: true, .. } if report.lease.stream_id.is_some() => NEVER,
        Action::Release | Action::Dead { .. } => now,
    }
}

/// Counts the attempt, or moves the row to the dead letters.
fn count(tables: &mut Tables, report: &Report, now: Time) {
    let lease = &report.lease;
    if let Action::Dead { reason, park } = &report.action {
        let Some(mut row) = tables.remove_row(lease.message_id, &lease.handler) else {
            return;
        };
        // A crash was counted when its lease was taken over.
        if *reason != "crashed" {
            row.attempts = row.attempts.saturating_add(1);
        }
        tables.bury(Dead {
            attempts: row.attempts,
            reason: (*reason).to_owned(),
            error: report.error.clone(),
            parked: *park && row.stream.is_some(),
            died_at: now,
            source: Source::Row(Box::new(row)),
        });
        return;
    }
    let goes_last = tables.has(Flaw::RetriesAtTheEnd) && matches!(report.action, Action::Retry(_));
    if let Some(row) = tables.row_mut(lease.message_id, &lease.handler) {
        row.started = false;
        match report.action {
            Action::Retry(_) => {
                row.attempts = row.attempts.saturating_add(1);
                row.losses = 0;
            }
            Action::Snooze(_) => row.losses = 0,
            Action::Release | Action::Dead { .. } => {}
        }
    }
    if goes_last && let Some(mut row) = tables.remove_row(lease.message_id, &lease.handler) {
        row.sequence = tables.next_sequence();
        tables.inbox.insert(row.sequence, row);
    }
}

/// Gives the row or the stream back, if it is still leased under the token.
fn free(tables: &mut Tables, lease: &Lease, due: Time) {
    match lease.stream_id {
        Some(stream) => {
            if let Some(gate) = tables.gate_under(&lease.lane, stream, lease.token) {
                gate.due = due;
                gate.token = None;
                gate.instance = None;
            }
        }
        None => {
            if let Some(row) = tables.row_mut(lease.message_id, &lease.handler)
                && row.token == Some(lease.token)
            {
                row.due = Some(due);
                row.token = None;
                row.instance = None;
            }
        }
    }
}

/// Completes rows of handlers without transaction; streams stay leased.
pub(super) fn complete_batch(tables: &mut Tables, leases: &[Lease]) -> Turn<Vec<bool>> {
    for lease in leases {
        if let Some(holder) = tables.locks.holder(&unit_of(lease), None) {
            return Turn::Held(holder);
        }
    }
    let held = leases
        .iter()
        .map(|lease| {
            let held = holds(tables, lease);
            if held {
                tables.remove_row(lease.message_id, &lease.handler);
            }
            held
        })
        .collect();
    Turn::Done(held)
}

/// Notes that a suspect is about to run alone.
pub(super) fn mark_started(tables: &mut Tables, lease: &Lease) -> Turn<bool> {
    if let Some(holder) = tables.locks.holder(&unit_of(lease), None) {
        return Turn::Held(holder);
    }
    let held = holds(tables, lease);
    if held && let Some(row) = tables.row_mut(lease.message_id, &lease.handler) {
        row.started = true;
    }
    Turn::Done(held)
}

/// Makes leases last longer; returns those that still hold. What is locked is being completed by
/// its holder, so it counts as held.
pub(super) fn renew(tables: &mut Tables, held: &[Lease], lease: Duration, now: Time) -> Vec<Lease> {
    let until = later(now, lease);
    held.iter()
        .filter(|lease| renew_one(tables, lease, until))
        .cloned()
        .collect()
}

fn renew_one(tables: &mut Tables, lease: &Lease, until: Time) -> bool {
    let locked = tables.locks.is_locked(&unit_of(lease));
    match lease.stream_id {
        Some(stream) => match tables.gate_under(&lease.lane, stream, lease.token) {
            Some(gate) => {
                if !locked {
                    gate.due = until;
                }
                true
            }
            None => false,
        },
        None => match tables.row_mut(lease.message_id, &lease.handler) {
            Some(row) if row.token == Some(lease.token) => {
                if !locked {
                    row.due = Some(until);
                }
                true
            }
            _ => false,
        },
    }
}

/// Which leases are to end before their time.
pub(super) struct Ended<'a> {
    pub(super) instance: Uuid,
    /// Only those under these tokens, or all.
    pub(super) tokens: Option<&'a [Uuid]>,
    /// The holder died: the token stays, so that the take-over counts a loss.
    pub(super) lost: bool,
}

impl Ended<'_> {
    fn covers(&self, instance: Option<Uuid>, token: Option<Uuid>) -> bool {
        let Some(token) = token else { return false };
        instance == Some(self.instance) && self.tokens.is_none_or(|some| some.contains(&token))
    }
}

/// Makes leases due now. Returns how many, and whether any of them is left.
pub(super) fn release(tables: &mut Tables, ended: &Ended<'_>, now: Time) -> (u64, bool) {
    let (mut released, mut left) = (0, false);
    let Tables {
        inbox,
        gates,
        locks,
        ..
    } = tables;
    for row in inbox.values_mut() {
        if ended.covers(row.instance, row.token) && row.due.is_some_and(|due| due > now) {
            let unit = super::locks::Unit::Row(row.id, row.handler.clone());
            if locks.is_locked(&unit) {
                left = true;
                continue;
            }
            row.due = Some(now);
            released += 1;
            if !ended.lost {
                row.token = None;
                row.instance = None;
                row.started = false;
            }
        }
    }
    for ((lane, stream), gate) in gates.iter_mut() {
        if ended.covers(gate.instance, gate.token) && gate.due > now {
            let unit = super::locks::Unit::Gate(lane.clone(), *stream);
            if locks.is_locked(&unit) {
                left = true;
                continue;
            }
            gate.due = now;
            released += 1;
            if !ended.lost {
                gate.token = None;
                gate.instance = None;
            }
        }
    }
    (released, left)
}
