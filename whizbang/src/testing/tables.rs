//! The rows of the store, named as in the database.

use std::collections::{BTreeMap, HashMap};

use uuid::Uuid;

use super::{clock::Time, flaw::Flaw, inspect::Stored, locks::Locks};
use crate::{
    Envelope, Headers, Payload, StreamKey,
    store::{CommandAnswer, Lease, Work},
};

/// A row of `wh_inbox`.
#[derive(Debug, Clone)]
pub(super) struct InboxRow {
    pub(super) id: Uuid,
    pub(super) handler: String,
    pub(super) message_type: String,
    pub(super) payload: Payload,
    pub(super) headers: Headers,
    pub(super) lane: String,
    pub(super) stream: Option<Uuid>,
    pub(super) sequence: i64,
    pub(super) correlation_id: Option<Uuid>,
    pub(super) causation_id: Option<Uuid>,
    pub(super) attempts: u32,
    pub(super) losses: u32,
    pub(super) started: bool,
    /// `None`: quiet, its gate answers for it.
    pub(super) due: Option<Time>,
    pub(super) token: Option<Uuid>,
    pub(super) instance: Option<Uuid>,
    pub(super) received_at: Time,
}

impl InboxRow {
    pub(super) fn work(&self, token: Uuid) -> Work {
        Work {
            lease: Lease {
                message_id: self.id,
                handler: self.handler.clone(),
                lane: self.lane.clone(),
                stream_id: self.stream,
                token,
            },
            message_type: self.message_type.clone(),
            payload: self.payload.clone(),
            headers: self.headers.clone(),
            sequence: self.sequence,
            correlation_id: self.correlation_id,
            causation_id: self.causation_id,
            attempts: self.attempts,
            losses: self.losses,
            received_at: Some(self.received_at),
        }
    }

    /// Notes that a lease on it ran out without a report.
    pub(super) fn lose(&mut self) {
        self.losses = self.losses.saturating_add(1);
        if std::mem::take(&mut self.started) {
            self.attempts = self.attempts.saturating_add(1);
        }
    }
}

/// A row of `wh_inbox_streams`.
#[derive(Debug, Clone)]
pub(super) struct Gate {
    pub(super) due: Time,
    pub(super) token: Option<Uuid>,
    pub(super) instance: Option<Uuid>,
}

/// A row of `wh_outbox`.
#[derive(Debug, Clone)]
pub(super) struct OutboxEntry {
    pub(super) envelope: Envelope,
    pub(super) destination: String,
    pub(super) sequence: i64,
    pub(super) attempts: u32,
    pub(super) sent_at: Option<Time>,
    pub(super) scheduled_at: Option<Time>,
    pub(super) retry_at: Option<Time>,
    pub(super) created_at: Time,
}

impl OutboxEntry {
    pub(super) fn stream(&self) -> Option<Uuid> {
        self.envelope.stream.as_ref().map(StreamKey::id)
    }
}

/// A row of `wh_outbox_relays`.
#[derive(Debug, Clone)]
pub(super) struct RelayLease {
    pub(super) instance: Uuid,
    pub(super) token: Uuid,
    pub(super) until: Time,
}

/// A row of `wh_message_deduplication`.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub(super) first_seen: Time,
    /// `None`: it came from the own outbox, where ids are the sender's own.
    pub(super) fingerprint: Option<i64>,
}

/// A row of `wh_command_results`.
#[derive(Debug, Clone)]
pub(super) struct CommandResult {
    pub(super) fingerprint: Vec<u8>,
    /// What it came to; `None` until it has ended.
    pub(super) answer: Option<CommandAnswer>,
    pub(super) created_at: Time,
    /// Number of the commit that made it visible.
    pub(super) commit: u64,
}

/// A row of `wh_subscriptions`.
#[derive(Debug, Clone)]
pub(super) struct Listener {
    pub(super) handler: String,
    pub(super) message_type: String,
    pub(super) lane: String,
    pub(super) last_seen: Time,
}

/// A row of `wh_dead_letters`, with what a requeue needs.
#[derive(Debug, Clone)]
pub(super) struct Dead {
    pub(super) source: Source,
    pub(super) attempts: u32,
    pub(super) reason: String,
    pub(super) error: Option<String>,
    pub(super) parked: bool,
    pub(super) died_at: Time,
}

/// Where a dead letter comes from.
#[derive(Debug, Clone)]
pub(super) enum Source {
    /// A handler gave up, or nobody handles it any more.
    Row(Box<InboxRow>),
    /// It never became a row.
    Message(Box<Envelope>),
    /// A transport refused it.
    Outbox(Box<OutboxEntry>),
    /// It was no message.
    Poison(Box<crate::store::Poison>),
}

/// Everything the database holds.
#[derive(Default)]
pub(super) struct Tables {
    pub(super) flaw: Option<Flaw>,
    pub(super) locks: Locks,
    pub(super) commits: u64,
    /// Raised by a restart of the server: connections of earlier generations are gone.
    pub(super) generation: u64,
    sequence: i64,
    pub(super) service: Option<String>,
    pub(super) instances: BTreeMap<Uuid, Time>,
    pub(super) subscriptions: Vec<Listener>,
    pub(super) known: HashMap<Uuid, Known>,
    pub(super) purged_before: Option<Time>,
    pub(super) inbox: BTreeMap<i64, InboxRow>,
    pub(super) gates: BTreeMap<(String, Uuid), Gate>,
    pub(super) outbox: BTreeMap<i64, OutboxEntry>,
    pub(super) relays: HashMap<String, RelayLease>,
    pub(super) commands: HashMap<(String, String), CommandResult>,
    pub(super) dead: BTreeMap<i64, Dead>,
    next_dead: i64,
    /// Every row ever stored, if a test asked for it.
    pub(super) journal: Option<Vec<Stored>>,
    /// The user's own tables: rows by key, and rows in the order of their commits.
    pub(super) values: BTreeMap<(String, String), serde_json::Value>,
    pub(super) lists: BTreeMap<String, Vec<serde_json::Value>>,
}

impl Tables {
    pub(super) fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    pub(super) fn next_sequence(&mut self) -> i64 {
        self.sequence += 1;
        self.sequence
    }

    pub(super) fn bury(&mut self, dead: Dead) {
        self.next_dead += 1;
        self.dead.insert(self.next_dead, dead);
    }

    /// Whether the service has, or had until lately, a handler of this name.
    pub(super) fn has_handler(&self, handler: &str) -> bool {
        self.subscriptions
            .iter()
            .any(|line| line.handler == handler)
    }

    /// Writes a row that was not there before.
    pub(super) fn insert_row(&mut self, row: InboxRow) {
        if let Some(journal) = &mut self.journal {
            journal.push(Stored {
                sequence: row.sequence,
                message_id: row.id,
                handler: row.handler.clone(),
                lane: row.lane.clone(),
                stream_id: row.stream,
            });
        }
        self.inbox.insert(row.sequence, row);
    }

    /// The row of a message for a handler.
    pub(super) fn row(&self, id: Uuid, handler: &str) -> Option<&InboxRow> {
        self.inbox
            .values()
            .find(|row| row.id == id && row.handler == handler)
    }

    pub(super) fn row_mut(&mut self, id: Uuid, handler: &str) -> Option<&mut InboxRow> {
        self.inbox
            .values_mut()
            .find(|row| row.id == id && row.handler == handler)
    }

    pub(super) fn remove_row(&mut self, id: Uuid, handler: &str) -> Option<InboxRow> {
        let sequence = self.row(id, handler)?.sequence;
        self.inbox.remove(&sequence)
    }

    /// Rows of a stream in its lane, in order.
    pub(super) fn stream_rows(&self, lane: &str, stream: Uuid) -> impl Iterator<Item = &InboxRow> {
        self.inbox
            .values()
            .filter(move |row| row.stream == Some(stream) && row.lane == lane)
    }

    pub(super) fn stream_is_empty(&self, lane: &str, stream: Uuid) -> bool {
        self.stream_rows(lane, stream).next().is_none()
    }

    /// The gate, if it is leased under this token.
    pub(super) fn gate_under(
        &mut self,
        lane: &str,
        stream: Uuid,
        token: Uuid,
    ) -> Option<&mut Gate> {
        self.gates
            .get_mut(&(lane.to_owned(), stream))
            .filter(|gate| gate.token == Some(token))
    }
}
