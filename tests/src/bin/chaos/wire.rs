//! What workers and the broker say to each other: one line of JSON for each request and answer.

use serde::{Deserialize, Serialize};
use uuid::Uuid;
use whizbang::{Envelope, Headers, StreamKey, transport::RawMessage};

use super::messages::Transfer;

/// A message as the broker keeps it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Message {
    pub(crate) id: Uuid,
    pub(crate) message_type: String,
    is_command: bool,
    payload: String,
    pub(crate) stream: Option<Uuid>,
    correlation_id: Option<Uuid>,
    causation_id: Option<Uuid>,
    headers: Headers,
}

impl Message {
    pub(crate) fn new(envelope: &Envelope) -> Self {
        Self {
            id: envelope.id,
            message_type: envelope.message_type.clone(),
            is_command: envelope.kind.is_command(),
            payload: envelope.payload.as_str().to_owned(),
            stream: envelope.stream.as_ref().map(StreamKey::id),
            correlation_id: envelope.correlation_id,
            causation_id: envelope.causation_id,
            headers: envelope.headers.clone(),
        }
    }

    /// The same message with a payload that nobody can read.
    pub(crate) fn with_payload(mut self, payload: &str) -> Self {
        payload.clone_into(&mut self.payload);
        self
    }

    pub(crate) fn into_raw(self) -> RawMessage {
        let label = self.headers.stream.clone();
        RawMessage {
            id: self.id,
            message_type: self.message_type,
            is_command: self.is_command,
            payload: self.payload.into_bytes(),
            stream: self.stream.map(|id| StreamKey::from_parts(id, label)),
            correlation_id: self.correlation_id,
            causation_id: self.causation_id,
            headers: self.headers,
        }
    }
}

/// What a worker asks of the broker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    Send {
        messages: Vec<Message>,
    },
    Receive {
        service: String,
        max: usize,
        wait_ms: u64,
    },
    Settle {
        service: String,
        delivery: u64,
        done: bool,
    },
    /// Whether a mishap that passes may happen once more.
    MayStrike {
        number: i64,
    },
    /// A transfer to execute as a client of the service.
    Errand {
        wait_ms: u64,
    },
    /// What a transfer was answered with.
    Executed {
        number: i64,
        effect: i64,
    },
    Counts {
        worker: usize,
        tally: Tally,
    },
}

/// What the broker answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Done,
    Sent(Vec<Verdict>),
    Delivered(Vec<(u64, Message)>),
    Strike(bool),
    Errand(Option<Transfer>),
    Away,
}

/// What becomes of one message of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Verdict {
    Acknowledged,
    Refused,
    Skipped,
}

/// What a worker has counted since it started.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) duplicates: u64,
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    pub(crate) leases_lost: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Self) {
        self.duplicates += other.duplicates;
        self.completed += other.completed;
        self.failed += other.failed;
        self.leases_lost += other.leases_lost;
    }
}
