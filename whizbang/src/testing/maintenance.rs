//! Housekeeping: the horizon of deduplication, and what is kept for a time only.

use std::{collections::HashSet, time::Duration};

use super::{
    clock::{Time, earlier},
    dead_letters::pins,
    tables::{Dead, Source, Tables},
};
use crate::store::MaintenanceTask;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// How long message ids are known.
pub(super) const DEDUP_RETENTION: Duration = DAY.saturating_mul(30);
/// How long replies of commands are kept.
pub(super) const COMMAND_RETENTION: Duration = DAY.saturating_mul(30);
/// How long a handler may be gone before it is taken for removed.
pub(super) const SUBSCRIPTION_RETENTION: Duration = DAY;

/// One round of housekeeping.
pub(super) fn maintain(tables: &mut Tables, now: Time) -> Vec<MaintenanceTask> {
    let horizon = earlier(now, DEDUP_RETENTION).max(tables.purged_before.unwrap_or(Time::MIN_UTC));
    tables.purged_before = Some(horizon);
    let tasks = [
        ("purge_message_ids", purge_ids(tables, horizon)),
        ("purge_command_results", purge_commands(tables, now)),
        ("bury_rows_without_handler", bury_orphans(tables, now)),
        ("purge_subscriptions", purge_subscriptions(tables, now)),
    ];
    tasks
        .into_iter()
        .map(|(task, affected)| MaintenanceTask {
            task: task.to_owned(),
            affected: affected as u64,
        })
        .collect()
}

/// Forgets ids that are older than the horizon and pinned by nothing.
fn purge_ids(tables: &mut Tables, horizon: Time) -> usize {
    let pinned: HashSet<_> = tables
        .inbox
        .values()
        .map(|row| row.id)
        .chain(tables.dead.values().filter_map(pins))
        .collect();
    let before = tables.known.len();
    tables
        .known
        .retain(|id, known| known.first_seen >= horizon || pinned.contains(id));
    before - tables.known.len()
}

fn purge_commands(tables: &mut Tables, now: Time) -> usize {
    let oldest = earlier(now, COMMAND_RETENTION);
    let before = tables.commands.len();
    tables
        .commands
        .retain(|_, result| result.created_at >= oldest);
    before - tables.commands.len()
}

/// Rows of handlers that nobody has had for a long time.
fn bury_orphans(tables: &mut Tables, now: Time) -> usize {
    let stale = earlier(now, SUBSCRIPTION_RETENTION);
    let live: HashSet<_> = tables
        .subscriptions
        .iter()
        .filter(|line| line.last_seen >= stale)
        .map(|line| line.handler.clone())
        .collect();
    let gone: HashSet<_> = tables
        .subscriptions
        .iter()
        .map(|line| line.handler.clone())
        .filter(|handler| !live.contains(handler))
        .collect();
    let orphans: Vec<_> = tables
        .inbox
        .values()
        .filter(|row| gone.contains(&row.handler))
        .map(|row| row.sequence)
        .collect();
    for sequence in &orphans {
        if let Some(row) = tables.inbox.remove(sequence) {
            tables.bury(Dead {
                attempts: row.attempts,
                reason: "no_handler".to_owned(),
                error: None,
                parked: false,
                died_at: now,
                source: Source::Row(Box::new(row)),
            });
        }
    }
    orphans.len()
}

fn purge_subscriptions(tables: &mut Tables, now: Time) -> usize {
    let stale = earlier(now, SUBSCRIPTION_RETENTION);
    let before = tables.subscriptions.len();
    tables.subscriptions.retain(|line| line.last_seen >= stale);
    before - tables.subscriptions.len()
}
