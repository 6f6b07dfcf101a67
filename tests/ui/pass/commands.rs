//! Every shape an idempotent command can have.

use serde::{Deserialize, Serialize};
use uuid::Uuid;
use whizbang::{
    Command, KeyPart, Metadata, Payload, State,
    handler::{Definition, HandlerFailure, Inputs, Registered, States},
    idempotent_command,
};
use whizbang_postgres::HandlerContext;

#[derive(Serialize, Deserialize)]
struct Tenant {
    id: TenantId,
}

/// A key type of the user's own.
#[derive(Serialize, Deserialize)]
struct TenantId(u16);

impl KeyPart for TenantId {
    fn key_part(&self) -> String {
        format!("tenant-{}", self.0)
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Receipt {
    number: u32,
}

#[derive(Serialize, Deserialize, Command)]
#[message(name = "commands.place", reply = Receipt, alias = "commands.order", alias = "commands.buy")]
struct Place {
    order: Uuid,
    number: u32,
    tenant: Tenant,
    note: String,
}

#[derive(Serialize, Deserialize, Command)]
#[message(name = "commands.cancel")]
struct Cancel(String);

#[derive(thiserror::Error, Debug)]
enum PlaceError {
    #[error("publishing failed")]
    Publish(#[from] whizbang::PublishError),
}

#[idempotent_command(key = order)]
async fn one_field(command: Place, cx: &mut HandlerContext<'_>) -> Result<Receipt, PlaceError> {
    let _ = cx.metadata();
    Ok(Receipt {
        number: command.number,
    })
}

#[idempotent_command(key = (order), scope = "commands.by_order", timeout = "5s")]
async fn in_parentheses(command: Place, _cx: &mut HandlerContext<'_>) -> anyhow::Result<Receipt> {
    Ok(Receipt {
        number: command.number,
    })
}

#[idempotent_command(key = (tenant.id, number, note))]
async fn several_fields(
    command: Place,
    State(prefix): State<String>,
    cx: &mut HandlerContext<'_>,
    meta: &Metadata,
) -> anyhow::Result<Receipt> {
    let _ = (prefix, cx.metadata(), meta);
    Ok(Receipt {
        number: command.number,
    })
}

#[idempotent_command(key = tenant.id)]
async fn nested_field(command: Place, cx: &mut HandlerContext<'_>) -> anyhow::Result<Receipt> {
    let _ = cx;
    Ok(Receipt {
        number: command.number,
    })
}

#[idempotent_command(key = 0)]
async fn tuple_field(command: Cancel, cx: &mut HandlerContext<'_>) -> anyhow::Result<()> {
    let _ = (command, cx);
    Ok(())
}

fn borrowed_key(command: &Cancel) -> &str {
    command.0.trim()
}

#[idempotent_command(key_fn = borrowed_key)]
async fn key_function(Cancel(_): Cancel, _: &mut HandlerContext<'_>) -> Result<(), String> {
    Ok(())
}

mod keys {
    pub(super) fn of_place(command: &super::Place) -> (String, u32) {
        (command.note.to_lowercase(), command.number)
    }
}

#[idempotent_command(key_fn = keys::of_place)]
async fn composite_key_function(
    command: Place,
    cx: &mut HandlerContext<'_>,
) -> anyhow::Result<Receipt> {
    let _ = cx;
    Ok(Receipt {
        number: command.number,
    })
}

/// An error that is kept as the answer, in part.
#[derive(thiserror::Error, Debug, Serialize, Deserialize)]
enum CancelError {
    #[error("too late")]
    TooLate,
    #[error("publishing failed")]
    #[serde(skip)]
    Publish(#[from] whizbang::PublishError),
}

impl CancelError {
    fn is_final(&self) -> bool {
        matches!(self, Self::TooLate)
    }
}

#[idempotent_command(
    key = 0,
    scope = "commands.every_option",
    version = "2024-12",
    store_error = CancelError::is_final,
    already_done = "cancellations_pkey",
    already_done = "cancellations_order_key",
    name = "every_option",
    lane = "orders",
    max_attempts = 5,
    backoff = "1s..5m",
    timeout = "30s",
    concurrency = 2,
    on_dead = "park"
)]
async fn every_option(Cancel(_): Cancel, _cx: &mut HandlerContext<'_>) -> Result<(), CancelError> {
    Err(CancelError::TooLate)
}

#[idempotent_command(key = 0, scope = "commands.closure", store_error = generic::<_>)]
async fn chosen_by_a_generic_function(
    Cancel(_): Cancel,
    _cx: &mut HandlerContext<'_>,
) -> Result<(), CancelError> {
    Ok(())
}

fn generic<E: std::error::Error>(error: &E) -> bool {
    error.source().is_none()
}

#[test]
fn the_attribute_says_what_is_kept() {
    let definition = every_option::definition();
    let command = definition.command.expect("a command");
    assert_eq!(command.version, "2024-12");
    let read = command.stored_error.expect("errors are kept");
    let error = read("\"TooLate\"").expect("readable");
    assert!(matches!(error.downcast_ref(), Some(CancelError::TooLate)));
    assert_eq!(
        definition.spec.options.already_done,
        ["cancellations_pkey", "cancellations_order_key"]
    );
    let plain = tuple_field::definition().command.expect("a command");
    assert_eq!(plain.version, env!("CARGO_PKG_VERSION"));
    assert!(plain.stored_error.is_none());
}

fn key(definition: &Definition, payload: &str) -> Result<String, HandlerFailure> {
    let metadata = Metadata {
        message_id: Uuid::now_v7(),
        message_type: definition.spec.message.to_owned(),
        handler: definition.spec.name.to_owned(),
        stream: None,
        correlation_id: None,
        causation_id: None,
        attempt: 1,
        received_at: None,
        headers: whizbang::Headers::default(),
    };
    let payload = Payload::from_json(payload).expect("JSON");
    let states = States::default();
    let command = definition.command.expect("an idempotent command");
    let key = (command.key)(Inputs::new(&payload, &metadata, &states))?;
    Ok(key.as_str().to_owned())
}

#[test]
fn keys_are_read_from_the_command() {
    let place = r#"{"order": "00000000-0000-0000-0000-000000000007", "number": 3, "tenant": {"id": 9}, "note": "No \"1\""}"#;
    let expect = |definition: Definition, expected: &str| {
        assert_eq!(key(&definition, place).unwrap(), expected);
    };
    let order = "00000000-0000-0000-0000-000000000007";
    expect(one_field::definition(), order);
    expect(in_parentheses::definition(), order);
    expect(nested_field::definition(), "tenant-9");
    expect(several_fields::definition(), r#"["tenant-9",3,"No \"1\""]"#);
    expect(composite_key_function::definition(), r#"["no \"1\"",3]"#);
    let cancel = r#"" trimmed ""#;
    assert_eq!(
        key(&tuple_field::definition(), cancel).unwrap(),
        " trimmed "
    );
    assert_eq!(key(&key_function::definition(), cancel).unwrap(), "trimmed");
}

#[test]
fn a_key_that_cannot_be_one_is_an_error() {
    let empty = key(&tuple_field::definition(), r#""""#);
    assert!(matches!(empty, Err(HandlerFailure::Key(_))), "{empty:?}");
    let undecodable = key(&tuple_field::definition(), "5");
    let is_expected = matches!(undecodable, Err(HandlerFailure::Undecodable(_)));
    assert!(is_expected, "{undecodable:?}");
}

#[test]
fn the_scope_is_the_oldest_name() {
    let scope = |definition: Definition| definition.command.expect("a command").scope;
    assert_eq!(scope(one_field::definition()), "commands.buy");
    assert_eq!(scope(tuple_field::definition()), "commands.cancel");
    assert_eq!(scope(in_parentheses::definition()), "commands.by_order");
}
