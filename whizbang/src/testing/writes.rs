//! What a transaction has written and not committed yet.

use serde_json::Value;
use uuid::Uuid;

use super::{
    flaw::Flaw,
    tables::{CommandResult, OutboxEntry, Tables},
};

/// One write, applied when the transaction commits.
pub(super) enum Write {
    /// A row of the user's own by its key; `None` removes it.
    Put {
        table: String,
        key: String,
        value: Option<Value>,
    },
    /// A row at the end of the user's own list.
    Append { table: String, row: Value },
    /// An inbox row is done.
    Complete { id: Uuid, handler: String },
    /// A stream has nothing left.
    CloseGate { lane: String, stream: Uuid },
    /// A message leaves.
    Outbox(Box<OutboxEntry>),
    /// A command's key, and later its reply.
    Command {
        scope: String,
        key: String,
        result: Box<CommandResult>,
    },
}

impl Write {
    fn is_the_users_own(&self) -> bool {
        matches!(self, Self::Put { .. } | Self::Append { .. })
    }
}

/// Applies all writes of a transaction at once.
pub(super) fn commit(tables: &mut Tables, writes: Vec<Write>) {
    tables.commits += 1;
    for write in writes {
        apply(tables, write);
    }
}

/// Forgets all writes of a transaction.
pub(super) fn roll_back(tables: &mut Tables, writes: Vec<Write>) {
    if tables.has(Flaw::KeepsRolledBackEffects) {
        for write in writes.into_iter().filter(Write::is_the_users_own) {
            apply(tables, write);
        }
    }
}

fn apply(tables: &mut Tables, write: Write) {
    match write {
        Write::Put { table, key, value } => match value {
            Some(value) => drop(tables.values.insert((table, key), value)),
            None => drop(tables.values.remove(&(table, key))),
        },
        Write::Append { table, row } => tables.lists.entry(table).or_default().push(row),
        Write::Complete { id, handler } => {
            if !tables.has(Flaw::KeepsCompletedRows) {
                tables.remove_row(id, &handler);
            }
        }
        Write::CloseGate { lane, stream } => drop(tables.gates.remove(&(lane, stream))),
        Write::Outbox(entry) => {
            if !(tables.has(Flaw::LosesOutboxRows) && entry.sequence % 2 == 0) {
                tables.outbox.insert(entry.sequence, *entry);
            }
        }
        Write::Command { scope, key, result } => {
            if !tables.has(Flaw::ForgetsCommandKeys) {
                let commit = tables.commits;
                let result = CommandResult { commit, ..*result };
                tables.commands.insert((scope, key), result);
            }
        }
    }
}
