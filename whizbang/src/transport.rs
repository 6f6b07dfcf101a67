//! The contract between the runtime and a broker.

use std::{collections::BTreeMap, fmt, time::Duration};

use futures::future::BoxFuture;
use uuid::Uuid;

use crate::{BoxError, Envelope};

mod in_process;

pub use in_process::InProcess;

/// A broker that carries messages between services.
///
/// A transport never sees the store: it moves envelopes, and the runtime decides what is stored
/// and when a delivery may be acknowledged.
pub trait Transport: Send + Sync + 'static {
    /// Name of the transport, and the outbox destination of what goes through it.
    fn name(&self) -> &str;

    /// Called once before the first intake, with what this service handles: declare or verify
    /// queues and subjects here.
    fn start<'a>(&'a self, intake: &'a Intake) -> BoxFuture<'a, Result<(), TransportError>>;

    /// Sends a batch, in order, and answers for each envelope whether the broker has
    /// acknowledged it. Within one stream nothing may overtake: after a refusal, later envelopes
    /// of the same stream in this batch are answered with [`Sent::Skipped`].
    fn send<'a>(
        &'a self,
        batch: &'a [Envelope],
    ) -> BoxFuture<'a, Result<Vec<Sent>, TransportError>>;

    /// Waits for deliveries: at least one, at most `max`, or none when `wait` is over.
    fn receive(
        &self,
        max: usize,
        wait: Duration,
    ) -> BoxFuture<'_, Result<Vec<Delivery>, TransportError>>;
}

/// What this service wants from a transport.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Intake {
    /// Name of the service.
    pub service: String,
    /// Wire names of the events it subscribes to, sorted.
    pub events: Vec<String>,
    /// Wire names of the commands it handles, sorted.
    pub commands: Vec<String>,
}

/// What the broker said to one envelope.
#[derive(Debug)]
pub enum Sent {
    /// The broker has it.
    Acknowledged,
    /// The broker refuses this message (too large, unroutable); counts as an attempt.
    Refused(String),
    /// Not tried, since an earlier message of its stream was refused.
    Skipped,
}

/// The broker is away or not ready; nothing is counted against any message.
#[derive(Debug, thiserror::Error)]
#[error("transport `{transport}`: {what}")]
pub struct TransportError {
    /// Name of the transport.
    pub transport: String,
    /// What failed and what to do.
    pub what: String,
    /// The client's own error.
    #[source]
    pub source: Option<BoxError>,
}

/// One message as it came from the broker.
pub struct Delivery {
    /// The message, if it could be read as one.
    pub content: Content,
    ack: Option<Box<dyn Acknowledge>>,
}

impl Delivery {
    /// A delivery and what acknowledges it.
    pub fn new(content: Content, ack: impl Acknowledge) -> Self {
        Self {
            content,
            ack: Some(Box::new(ack)),
        }
    }

    /// Splits the delivery into content and acknowledgement.
    pub fn into_parts(self) -> (Content, Option<Box<dyn Acknowledge>>) {
        (self.content, self.ack)
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("content", &self.content)
            .finish_non_exhaustive()
    }
}

/// What a delivery holds.
#[derive(Debug, Clone)]
pub enum Content {
    /// Bytes with the facts the transport could read from the broker's own headers.
    Message(Box<RawMessage>),
    /// Bytes without a usable id or type.
    Poison {
        /// The bytes as they came.
        raw: Vec<u8>,
        /// Why it is no message.
        error: String,
    },
}

/// A message whose payload has not been looked at yet.
#[derive(Debug, Clone)]
pub struct RawMessage {
    /// Message id; for an id that is no UUID the transport makes a version 5 one of source and id.
    pub id: Uuid,
    /// Wire name.
    pub message_type: String,
    /// Whether it is a command.
    pub is_command: bool,
    /// The payload as it came.
    pub payload: Vec<u8>,
    /// Stream id and label.
    pub stream: Option<crate::StreamKey>,
    /// Correlation id.
    pub correlation_id: Option<Uuid>,
    /// Causation id.
    pub causation_id: Option<Uuid>,
    /// The rest.
    pub headers: crate::Headers,
}

impl RawMessage {
    /// The raw form of an envelope, as an in-process transport hands it on.
    pub fn from_envelope(envelope: &Envelope) -> Self {
        Self {
            id: envelope.id,
            message_type: envelope.message_type.clone(),
            is_command: envelope.kind.is_command(),
            payload: envelope.payload.as_str().as_bytes().to_vec(),
            stream: envelope.stream.clone(),
            correlation_id: envelope.correlation_id,
            causation_id: envelope.causation_id,
            headers: envelope.headers.clone(),
        }
    }
}

/// Tells the broker what became of a delivery. Dropping it unsettled means redelivery.
pub trait Acknowledge: Send + 'static {
    /// The message is safe in the inbox (or the dead letters).
    fn ack(self: Box<Self>) -> BoxFuture<'static, Result<(), TransportError>>;
    /// The message could not be stored; deliver it again.
    fn nack(self: Box<Self>) -> BoxFuture<'static, Result<(), TransportError>>;
}

/// User headers as brokers carry them.
pub type HeaderMap = BTreeMap<String, String>;
