//! What a test can look at from outside.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde_json::Value;
use uuid::Uuid;

use super::memory::MemoryStore;

/// How much of everything there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Inbox rows, leased ones too.
    pub inbox: usize,
    /// Streams that are at work, wait or are parked.
    pub gates: usize,
    /// Outbox rows, scheduled ones too.
    pub outbox: usize,
    /// Dead letters.
    pub dead: usize,
}

/// A row that was stored in the inbox: its place in the order of its stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Its place; a requeued row has a new one.
    pub sequence: i64,
    /// The message.
    pub message_id: Uuid,
    /// The handler it is for.
    pub handler: String,
    /// The handler's lane.
    pub lane: String,
    /// The stream.
    pub stream_id: Option<Uuid>,
}

/// The user's own tables, as far as they are committed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Effects {
    /// Rows by table and key.
    pub values: BTreeMap<(String, String), Value>,
    /// Rows in the order of their commits, by list.
    pub lists: BTreeMap<String, Vec<Value>>,
}

impl Effects {
    /// The rows of a list.
    pub fn list(&self, table: &str) -> &[Value] {
        self.lists.get(table).map_or(&[], Vec::as_slice)
    }

    /// A row by its key.
    pub fn value(&self, table: &str, key: &str) -> Option<&Value> {
        self.values.get(&(table.to_owned(), key.to_owned()))
    }
}

impl MemoryStore {
    /// The database's clock.
    pub fn now(&self) -> DateTime<Utc> {
        self.database.clock.now()
    }

    /// Remembers every row that is stored from now on.
    pub fn keep_journal(&self) {
        self.database.lock().journal.get_or_insert_default();
    }

    /// The rows stored since [`keep_journal`](Self::keep_journal), in the order of their storing.
    pub fn journal(&self) -> Vec<Stored> {
        self.database.lock().journal.clone().unwrap_or_default()
    }

    /// How much of everything there is.
    pub fn load(&self) -> Load {
        let tables = self.database.lock();
        Load {
            inbox: tables.inbox.len(),
            gates: tables.gates.len(),
            outbox: tables.outbox.len(),
            dead: tables.dead.len(),
        }
    }

    /// What handlers have written and committed.
    pub fn effects(&self) -> Effects {
        let tables = self.database.lock();
        Effects {
            values: tables.values.clone(),
            lists: tables.lists.clone(),
        }
    }

    /// The rows of one list, from the given place on.
    pub fn list_from(&self, table: &str, first: usize) -> Vec<Value> {
        let tables = self.database.lock();
        let rows = tables.lists.get(table).map_or(&[][..], Vec::as_slice);
        rows.get(first..).unwrap_or_default().to_vec()
    }

    /// Whether the processes' connections hold any lock.
    pub fn is_at_rest(&self) -> bool {
        self.database.look(|tables, _| tables.locks.is_empty())
    }

    /// What is wrong with the store's own state; nothing, unless the store has a mistake.
    pub fn contradictions(&self) -> Vec<String> {
        let tables = self.database.lock();
        let mut found = Vec::new();
        for row in tables.inbox.values() {
            let Some(stream) = row.stream else {
                if row.due.is_none() {
                    found.push(format!("row {} of {} is due never", row.id, row.handler));
                }
                continue;
            };
            if row.due.is_none() && !tables.gates.contains_key(&(row.lane.clone(), stream)) {
                found.push(format!(
                    "row {} of {} is quiet and no gate answers for it",
                    row.id, row.handler
                ));
            }
        }
        found
    }

    /// Everything that waits, one line each, for the report of a failed test.
    pub fn describe(&self) -> String {
        let now = self.database.clock.now();
        let tables = self.database.lock();
        let mut lines = vec![format!("database time {now}")];
        for row in tables.inbox.values() {
            lines.push(format!(
                "inbox {} {} {} lane {} stream {:?} #{} attempts {} losses {} due {:?} token {:?} payload {}",
                row.id,
                row.handler,
                row.message_type,
                row.lane,
                row.stream,
                row.sequence,
                row.attempts,
                row.losses,
                row.due,
                row.token,
                row.payload.as_str()
            ));
        }
        for ((lane, stream), gate) in &tables.gates {
            lines.push(format!(
                "gate {lane} {stream} due {} token {:?}",
                gate.due, gate.token
            ));
        }
        for entry in tables.outbox.values() {
            lines.push(format!(
                "outbox {} {} → {} #{} attempts {} scheduled {:?} retry {:?}",
                entry.envelope.id,
                entry.envelope.message_type,
                entry.destination,
                entry.sequence,
                entry.attempts,
                entry.scheduled_at,
                entry.retry_at
            ));
        }
        for (id, dead) in &tables.dead {
            lines.push(format!("dead letter {id} {} {:?}", dead.reason, dead.error));
        }
        lines.join("\n")
    }
}
