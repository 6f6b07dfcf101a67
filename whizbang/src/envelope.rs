//! A message under way: payload, identity and what is known about it.

use std::{collections::BTreeMap, sync::Arc};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{Message, MessageKind, StreamKey, error::DecodeError};

/// The JSON text of a message, shared by all handlers of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload(Arc<str>);

impl Payload {
    /// Encodes a message.
    ///
    /// # Errors
    /// When the type's `Serialize` fails.
    pub fn encode<T: Serialize>(message: &T) -> Result<Self, serde_json::Error> {
        Ok(Self(serde_json::to_string(message)?.into()))
    }

    /// Takes JSON text as it is.
    ///
    /// # Errors
    /// When the text is not one JSON value.
    pub fn from_json(text: impl Into<Arc<str>>) -> Result<Self, serde_json::Error> {
        let text = text.into();
        serde_json::from_str::<&serde_json::value::RawValue>(&text)?;
        Ok(Self(text))
    }

    /// Takes text that the database has already accepted as JSON.
    pub fn from_stored(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// The JSON text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Decodes into a message type.
    ///
    /// # Errors
    /// When the text does not fit the type; the error names the type and the place.
    pub fn decode<M: Message>(&self) -> Result<M, DecodeError> {
        serde_json::from_str(&self.0).map_err(|source| DecodeError {
            message_type: M::NAME,
            source,
        })
    }

    /// A hash of what the text says: the same whatever the order of the members, the white space,
    /// the spelling of numbers and strings, and whether a member is `null` or left out.
    ///
    /// ```
    /// use whizbang::Payload;
    /// let first = Payload::from_json(r#"{"sku": "tea", "price": 2.50}"#)?;
    /// let retry = Payload::from_json(r#"{"price":2.5,"sku":"tea","note":null}"#)?;
    /// assert_eq!(first.fingerprint(), retry.fingerprint());
    /// # Ok::<_, serde_json::Error>(())
    /// ```
    pub fn fingerprint(&self) -> [u8; 32] {
        crate::fingerprint::fingerprint(&self.0)
    }

    /// The short form of [`fingerprint`](Self::fingerprint) that the inbox compares repeats by.
    pub fn short_fingerprint(&self) -> i64 {
        let hash = self.fingerprint();
        i64::from_be_bytes([
            hash[0], hash[1], hash[2], hash[3], hash[4], hash[5], hash[6], hash[7],
        ])
    }
}

/// What travels beside the payload and is stored as the row's `metadata`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Headers {
    /// Name of the service that published the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// W3C trace context of the publisher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// The stream key as the publisher wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    /// When the relay first sent it, in database time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_at: Option<DateTime<Utc>>,
    /// The user's own headers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
}

impl Headers {
    /// The stored form.
    pub fn to_json(&self) -> String {
        // A map of strings and plain options always encodes.
        serde_json::to_string(self).unwrap_or_else(|_| "{}".to_owned())
    }

    /// Reads the stored form; what does not fit is left at its default, since a message must not
    /// be lost to a foreign header.
    pub fn from_json(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }
}

/// A message on its way between an outbox, a transport and an inbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// Identity; the inbox stores each id once.
    pub id: Uuid,
    /// Wire name of the type.
    pub message_type: String,
    /// Event or command.
    pub kind: MessageKind,
    /// The JSON text.
    pub payload: Payload,
    /// Stream that it belongs to.
    pub stream: Option<StreamKey>,
    /// What the whole conversation is about; the first message's id by default.
    pub correlation_id: Option<Uuid>,
    /// Id of the message whose handling published this one.
    pub causation_id: Option<Uuid>,
    /// Everything else.
    pub headers: Headers,
}

impl Envelope {
    /// Wraps a message with a fresh, time-ordered id.
    ///
    /// # Errors
    /// When the type's `Serialize` fails.
    pub fn new<M: Message>(message: &M) -> Result<Self, serde_json::Error> {
        let id = Uuid::now_v7();
        let stream = message.stream();
        Ok(Self {
            id,
            message_type: M::NAME.to_owned(),
            kind: M::KIND,
            payload: Payload::encode(message)?,
            headers: Headers {
                stream: stream.as_ref().map(|key| key.label().to_owned()),
                ..Headers::default()
            },
            stream,
            correlation_id: Some(id),
            causation_id: None,
        })
    }

    /// The later of the time inside a version 7 id and the time the relay first sent it: what the
    /// deduplication window is measured by. `None` if neither is known.
    pub fn born_at(&self) -> Option<DateTime<Utc>> {
        let in_id = (self.id.get_version_num() == 7)
            .then(|| self.id.get_timestamp())
            .flatten()
            .and_then(|time| {
                let (seconds, nanos) = time.to_unix();
                DateTime::from_timestamp(i64::try_from(seconds).ok()?, nanos)
            });
        in_id.max(self.headers.sent_at)
    }
}

/// What a handler can learn about the message it is given: argument `&Metadata`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// Id of the message.
    pub message_id: Uuid,
    /// Wire name under which it arrived.
    pub message_type: String,
    /// Name of the handler that runs.
    pub handler: String,
    /// Stream, if any.
    pub stream: Option<StreamKey>,
    /// What the whole conversation is about.
    pub correlation_id: Option<Uuid>,
    /// Id of the message that caused this one.
    pub causation_id: Option<Uuid>,
    /// This attempt's number, from 1.
    pub attempt: u32,
    /// When the message reached this service, in database time.
    pub received_at: Option<DateTime<Utc>>,
    /// Source service, trace context and the sender's own headers.
    pub headers: Headers,
}

impl Metadata {
    /// What a handler of this name is told at the first attempt of a message: for calling it
    /// directly, in a unit test.
    pub fn of(envelope: &Envelope, handler: &str) -> Self {
        Self {
            message_id: envelope.id,
            message_type: envelope.message_type.clone(),
            handler: handler.to_owned(),
            stream: envelope.stream.clone(),
            correlation_id: envelope.correlation_id,
            causation_id: envelope.causation_id,
            attempt: 1,
            received_at: None,
            headers: envelope.headers.clone(),
        }
    }

    /// The sender's header of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.headers.get(name).map(String::as_str)
    }
}
