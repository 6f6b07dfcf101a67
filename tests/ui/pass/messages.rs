//! Every shape a message can have.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use uuid::Uuid;
use whizbang::{AsStreamKey, Command, Event, Message, MessageKind, StreamKey};

#[derive(Serialize, Deserialize, Event)]
#[message(name = "messages.unit")]
struct Unit;

#[derive(Serialize, Deserialize, Event)]
#[message(name = "messages.tuple", stream = 0)]
struct Tuple(Uuid, #[serde(default)] u8);

#[derive(Serialize, Deserialize, Event)]
#[message(name = "messages.pair", stream = 0.1)]
struct Pair((u8, u16));

#[derive(Serialize, Deserialize)]
struct Customer {
    id: CustomerId,
}

/// A key type of the user's own.
#[derive(Serialize, Deserialize)]
struct CustomerId(String);

impl AsStreamKey for CustomerId {
    fn as_stream_key(&self) -> Option<StreamKey> {
        self.0.as_stream_key()
    }
}

#[derive(Serialize, Deserialize, Event)]
#[message(
    name = "messages.renamed",
    alias = "messages.newer",
    alias = "messages.old"
)]
#[message(stream = customer.id)]
struct Nested {
    customer: Customer,
}

#[derive(Serialize, Deserialize, Event)]
#[message(name = "messages.raw", stream = r#type)]
struct Raw {
    r#type: Option<u64>,
}

#[derive(Serialize, Deserialize, Event)]
#[message(name = "messages.changed", stream = id)]
enum Changed {
    Opened { id: u32 },
    Closed { id: u32, by: String },
}

#[derive(Serialize, Deserialize, Event)]
#[message(name = "messages.tagged")]
#[serde(tag = "kind")]
enum Tagged {
    One,
    Two { value: u8 },
}

#[derive(Serialize, Deserialize, Command)]
#[message(name = "messages.ask")]
struct Ask;

#[derive(Serialize, Deserialize, Command)]
#[message(name = "messages.ask_much", reply = HashMap<String, Vec<u8>>, stream = of)]
pub(crate) struct AskMuch {
    of: Uuid,
}

fn reply_of<C: Command<Reply = R>, R>() {}

#[test]
fn names_kinds_and_replies() {
    assert_eq!(
        (Unit::NAME, Unit::KIND),
        ("messages.unit", MessageKind::Event)
    );
    assert_eq!(
        (Ask::NAME, Ask::KIND),
        ("messages.ask", MessageKind::Command)
    );
    assert_eq!(Unit::ALIASES, [""; 0]);
    assert_eq!(Nested::ALIASES, ["messages.newer", "messages.old"]);
    assert_eq!(Tagged::NAME, "messages.tagged");
    reply_of::<Ask, ()>();
    reply_of::<AskMuch, HashMap<String, Vec<u8>>>();
}

#[test]
fn streams_are_read_from_their_fields() {
    let id = Uuid::from_u128(7);
    assert_eq!(Unit.stream(), None);
    assert_eq!(Tuple(id, 1).stream(), Some(StreamKey::from(id)));
    assert_eq!(Pair((1, 2)).stream(), Some(StreamKey::from(2_u16)));
    assert_eq!(AskMuch { of: id }.stream(), Some(StreamKey::from(id)));
    let customer = Customer {
        id: CustomerId("c".to_owned()),
    };
    assert_eq!(Nested { customer }.stream(), Some(StreamKey::from("c")));
    assert_eq!(Raw { r#type: None }.stream(), None);
    assert_eq!(
        Raw { r#type: Some(3) }.stream(),
        Some(StreamKey::from(3_u64))
    );
    let closed = Changed::Closed {
        id: 4,
        by: "me".to_owned(),
    };
    assert_eq!(closed.stream(), Some(StreamKey::from(4_u32)));
    assert_eq!(
        Changed::Opened { id: 5 }.stream(),
        Some(StreamKey::from(5_u32))
    );
    assert_eq!(Tagged::One.stream(), Tagged::Two { value: 1 }.stream());
}
