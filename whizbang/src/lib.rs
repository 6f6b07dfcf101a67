//! Message handlers with exactly-once effects: inbox, outbox and idempotent commands in one
//! database transaction.
//!
//! This crate knows messages, handlers and the runtime, but no database: `whizbang-postgres` is
//! the store, and the crate that a service starts with.

// A service must not die of an error of ours; what is left is documented or marked.
#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::string_slice,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

extern crate self as whizbang;

mod command_key;
mod config;
mod context;
mod dispatcher;
mod envelope;
mod error;
mod fingerprint;
pub mod handler;
#[cfg(feature = "axum")]
pub mod http;
mod link;
mod message;
pub mod registry;
mod retry;
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;
pub mod transport;

mod runtime;

#[doc(hidden)]
#[path = "private.rs"]
pub mod __private;

pub use command_key::{AsCommandKey, CommandKey, KeyError, KeyPart, MAX_KEY_BYTES};
pub use config::{BreakerPolicy, RuntimeConfig};
pub use context::{Context, LazyContext};
pub use dispatcher::{
    Dispatcher, DispatcherParts, Execute, ExecuteIn, Outgoing, RelayHint, Routing,
};
pub use envelope::{Envelope, Headers, Metadata, Payload};
pub use error::{
    BoxError, Decision, DecodeError, ExecuteError, HandlerError, MAX_ERROR_BYTES, PublishError,
    StartError, StartFault, StoreError, StoreErrorKind, decision_of, error_chain, storable_text,
};
pub use handler::{HandlerFailure, OnDead, State};
pub use message::{
    AsStreamKey, Command, Event, HasReply, MAX_NAME_BYTES, Message, MessageKind, StreamKey,
    name_fault,
};
pub use retry::Backoff;
pub use runtime::{App, Builder, Counts, Health, ShutdownError};
pub use store::InTransaction;

#[doc = include_str!("../docs/command.md")]
pub use whizbang_macros::Command;
#[doc = include_str!("../docs/event.md")]
pub use whizbang_macros::Event;
#[doc = include_str!("../docs/handler.md")]
pub use whizbang_macros::handler;
#[doc = include_str!("../docs/idempotent_command.md")]
///
// Its context is that of the store in memory, which is not always there.
#[cfg_attr(feature = "testing", doc = "```")]
#[cfg_attr(not(feature = "testing"), doc = "```ignore")]
#[doc = include_str!("../docs/idempotent_command.rs")]
#[doc = "```"]
pub use whizbang_macros::idempotent_command;
