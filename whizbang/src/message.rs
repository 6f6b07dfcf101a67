//! What services say to each other: messages, their wire names and their streams.

use serde::{Serialize, de::DeserializeOwned};
use uuid::Uuid;

/// Whether a message tells what happened or asks for something to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MessageKind {
    /// Something happened; any number of handlers may want to know.
    Event,
    /// Something is asked for; exactly one handler does it.
    Command,
}

/// A type with a stable name on the wire.
///
/// Derive [`Event`](macro@crate::Event) or [`Command`](macro@crate::Command) instead of
/// implementing this by hand. The name, not the Rust path, identifies the type in the database
/// and on brokers, so a type can be renamed or moved freely.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a message",
    label = "this type has no wire name",
    note = "derive `Event` or `Command`: `#[derive(Serialize, Deserialize, Event)] #[message(name = \"orders.order_placed\")]`"
)]
pub trait Message: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The stable name on the wire, such as `orders.order_placed`.
    const NAME: &'static str;
    /// Older names that are still accepted.
    const ALIASES: &'static [&'static str] = &[];
    /// Event or command.
    const KIND: MessageKind;

    /// The stream that this message belongs to; messages of one stream are handled in order.
    fn stream(&self) -> Option<StreamKey> {
        None
    }
}

/// A message that says what happened. Published to every subscriber.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an event",
    label = "only events can be published",
    note = "commands go to their one handler with `send` or `execute`; events are declared with `#[derive(Event)]`"
)]
pub trait Event: Message {}

/// What the derive `Event` implements. `Event` itself follows, so that what the message lacks is
/// asked for in one place and reported once.
pub trait DeclaredEvent {}

#[diagnostic::do_not_recommend]
impl<E: Message + DeclaredEvent> Event for E {}

/// A message that asks for something. Sent to the one service that handles it.
///
/// Every message with a reply is one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a command",
    label = "not a command",
    note = "a command asks for something: it is declared with `#[derive(Command)]`, and sent or executed; an event is published, and handled by `#[handler]`"
)]
pub trait Command: Message + HasReply {}

#[diagnostic::do_not_recommend]
impl<C: Message + HasReply> Command for C {}

/// What executing a command answers; the derive [`Command`](macro@crate::Command) implements it
/// for the type in `reply = …`, or for `()`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a command",
    label = "not a command",
    note = "a command asks for something: it is declared with `#[derive(Command)]`, and sent or executed; an event is published, and handled by `#[handler]`"
)]
pub trait HasReply {
    /// The answer; stored, and returned to repeats.
    type Reply: Serialize + DeserializeOwned + Send + 'static;
}

/// Longest wire name, handler name or lane, in bytes.
pub const MAX_NAME_BYTES: usize = 200;

/// Says why `name` cannot be a wire name, handler name or lane; `None` if it can.
///
/// ```
/// assert!(whizbang::name_fault("orders.order_placed").is_none());
/// assert!(whizbang::name_fault("").is_some());
/// ```
pub fn name_fault(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        return Some("is empty");
    }
    if name.len() > MAX_NAME_BYTES {
        return Some("is longer than 200 bytes");
    }
    if name.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Some("contains white space or a control character");
    }
    None
}

/// The key of a stream: messages that share it are handled one at a time, in stored order.
///
/// A [`Uuid`] is used as it is. Integers and strings are hashed to a UUID (version 5) that is the
/// same on every machine and in every release; the text itself travels in the metadata.
///
/// ```
/// use whizbang::StreamKey;
/// let key = StreamKey::from("customer-7");
/// assert_eq!(key.id().to_string(), "82fcd652-e868-58d5-b3fd-d97a1589be68");
/// assert_eq!(key.label(), "customer-7");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StreamKey {
    id: Uuid,
    label: String,
}

/// Namespace of the hashed stream keys; changing it would change the order of existing streams.
const STREAM_NAMESPACE: Uuid = Uuid::from_u128(0x6f0d_56a1_3c1b_4a5e_9b61_7768_6c7a_626e);

impl StreamKey {
    /// The id that the database orders by.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// The key as the sender wrote it.
    pub fn label(&self) -> &str {
        &self.label
    }

    fn hashed(kind: &str, label: String) -> Self {
        let id = Uuid::new_v5(&STREAM_NAMESPACE, format!("{kind}:{label}").as_bytes());
        Self { id, label }
    }

    /// A key read back from storage, where only the id decides.
    pub fn from_parts(id: Uuid, label: Option<String>) -> Self {
        let label = label.unwrap_or_else(|| id.to_string());
        Self { id, label }
    }
}

impl From<Uuid> for StreamKey {
    fn from(id: Uuid) -> Self {
        Self {
            id,
            label: id.to_string(),
        }
    }
}

impl From<&str> for StreamKey {
    fn from(key: &str) -> Self {
        Self::hashed("str", key.to_owned())
    }
}

impl From<String> for StreamKey {
    fn from(key: String) -> Self {
        Self::hashed("str", key)
    }
}

macro_rules! stream_key_from_integer {
    ($($integer:ty),*) => {$(
        impl From<$integer> for StreamKey {
            fn from(key: $integer) -> Self {
                Self::hashed("int", key.to_string())
            }
        }
    )*};
}
stream_key_from_integer!(
    i8, i16, i32, i64, i128, u8, u16, u32, u64, u128, isize, usize
);

/// A field that can be a stream key: `Uuid`, any integer, `String`, `&str`, or your own newtype
/// that implements it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a stream key",
    label = "a stream key is a `Uuid`, an integer or a string",
    note = "for a type of your own, implement `whizbang::AsStreamKey`"
)]
pub trait AsStreamKey {
    /// The key of the stream; `None` puts the message into no stream.
    fn as_stream_key(&self) -> Option<StreamKey>;
}

macro_rules! as_stream_key {
    ($($key:ty),*) => {$(
        impl AsStreamKey for $key {
            fn as_stream_key(&self) -> Option<StreamKey> {
                Some(StreamKey::from(self.clone()))
            }
        }
    )*};
}
as_stream_key!(
    Uuid, String, i8, i16, i32, i64, i128, u8, u16, u32, u64, u128, isize, usize
);

impl<T: AsStreamKey> AsStreamKey for Option<T> {
    fn as_stream_key(&self) -> Option<StreamKey> {
        self.as_ref().and_then(AsStreamKey::as_stream_key)
    }
}

impl<T: AsStreamKey + ?Sized> AsStreamKey for &T {
    fn as_stream_key(&self) -> Option<StreamKey> {
        (**self).as_stream_key()
    }
}

impl AsStreamKey for str {
    fn as_stream_key(&self) -> Option<StreamKey> {
        Some(StreamKey::from(self))
    }
}
