//! A line of the input file as a transport would deliver it.

use serde::Deserialize;
use serde_json::value::RawValue;
use uuid::Uuid;
use whizbang::{Headers, StreamKey, transport::RawMessage};

/// Largest payload of a message, in bytes.
pub(crate) const MESSAGE_LIMIT: usize = 8 * 1024;

/// The facts around a message that a broker keeps in headers.
#[derive(Debug, Deserialize)]
pub(crate) struct Line<'a> {
    pub(crate) id: Uuid,
    #[serde(rename = "type")]
    pub(crate) message_type: String,
    #[serde(default)]
    pub(crate) kind: Kind,
    pub(crate) stream: Option<String>,
    #[serde(borrow)]
    pub(crate) data: &'a RawValue,
}

/// Commands are what this shop is mostly sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    #[default]
    Command,
    Event,
}

impl<'a> Line<'a> {
    pub(crate) fn read(line: &'a [u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(line)
    }
}

/// The line as a message. The payload is not looked at: that is the business of the runtime and of
/// the handlers.
pub(crate) fn message(line: &[u8]) -> Result<RawMessage, serde_json::Error> {
    let line = Line::read(line)?;
    Ok(RawMessage {
        id: line.id,
        message_type: line.message_type,
        is_command: line.kind == Kind::Command,
        payload: line.data.get().as_bytes().to_vec(),
        stream: line.stream.map(stream_key),
        correlation_id: None,
        causation_id: None,
        headers: Headers {
            source: Some("shop-front".to_owned()),
            ..Headers::default()
        },
    })
}

/// The same key that the message types of this program would give.
fn stream_key(text: String) -> StreamKey {
    match Uuid::try_parse(&text) {
        Ok(id) => StreamKey::from(id),
        Err(_) => StreamKey::from(text),
    }
}
