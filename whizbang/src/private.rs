//! What generated code calls. Not part of the public interface: its shape changes with the macros,
//! which are pinned to the same version.

use std::future::Future;

pub use crate::{
    command_key::{AsCommandKey, CommandKey},
    handler::{
        Argument, CommandSpec, Definition, ErasedCall, HandlerFailure, HandlerFuture,
        HandlerOptions, HandlerResult, HandlerSpec, Inputs, LazyFn, OnDead, PlainFn, Registered,
        Requirement, TransactionFn,
    },
    message::{AsStreamKey, Command, Event, Message, MessageKind, StreamKey},
    registry::Registration,
};
pub use inventory;

use crate::{BoxError, Context, LazyContext, store::Store};

/// A function pointer of one of the shapes a handler can have, told apart by its context.
pub trait IntoCall {
    /// Erases the store.
    fn into_call(self) -> ErasedCall;
}

impl IntoCall for PlainFn {
    fn into_call(self) -> ErasedCall {
        ErasedCall::plain(self)
    }
}

impl<S: Store> IntoCall for TransactionFn<S> {
    fn into_call(self) -> ErasedCall {
        ErasedCall::transaction(self)
    }
}

impl<S: Store> IntoCall for LazyFn<S> {
    fn into_call(self) -> ErasedCall {
        ErasedCall::lazy(self)
    }
}

/// Types that may stand behind the one `&mut` of a handler.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler context",
    label = "only a context is taken by `&mut`",
    note = "take `&mut HandlerContext<'_>` for a transaction, or `&mut LazyContext<'_>` to open one later (both from `whizbang_postgres`)"
)]
pub trait IsContext {}

impl<S: Store> IsContext for Context<'_, S> {}
impl<S: Store> IsContext for LazyContext<'_, S> {}

/// Types whose context can run an idempotent command.
#[diagnostic::on_unimplemented(
    message = "an idempotent command needs `&mut HandlerContext<'_>`, not `{Self}`",
    label = "its key is written in the same transaction as its effects",
    note = "take `cx: &mut HandlerContext<'_>` (from `whizbang_postgres`)"
)]
pub trait IsCommandContext: IsContext {}

impl<S: Store> IsCommandContext for Context<'_, S> {}

/// What a handler may return.
#[diagnostic::on_unimplemented(
    message = "a handler returns `Result<(), E>`, not `{Self}`",
    label = "neither `Ok(())` nor an error",
    note = "return `Result<(), E>` where `E` is your error type, `anyhow::Error` or `whizbang::BoxError`"
)]
pub trait HandlerReturn {
    /// The framework's own form.
    fn into_result(self) -> HandlerResult;
}

impl<E: IntoBoxError> HandlerReturn for Result<(), E> {
    fn into_result(self) -> HandlerResult {
        match self {
            Ok(()) => Ok(None),
            Err(error) => Err(HandlerFailure::Returned(error.into_box_error())),
        }
    }
}

/// What an idempotent command may return.
#[diagnostic::on_unimplemented(
    message = "the handler of `{C}` returns `Result<Reply, E>` with the command's reply type, not `{Self}`",
    label = "not the reply that the command declares",
    note = "the reply stands on the command: `#[message(name = \"…\", reply = OrderReceipt)]`; without it the reply is `()`"
)]
pub trait CommandReturn<C: Command> {
    /// The framework's own form.
    fn into_result(self) -> HandlerResult;
}

impl<C: Command, E: IntoBoxError> CommandReturn<C> for Result<C::Reply, E> {
    fn into_result(self) -> HandlerResult {
        match self {
            Ok(reply) => serde_json::to_string(&reply)
                .map(Some)
                .map_err(HandlerFailure::Reply),
            Err(error) => Err(HandlerFailure::Returned(error.into_box_error())),
        }
    }
}

/// Errors that a handler may return.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the error of a handler",
    label = "not an error type",
    note = "use a type that implements `std::error::Error + Send + Sync`, `anyhow::Error`, `String` or `whizbang::BoxError`"
)]
pub trait IntoBoxError {
    /// Boxes it.
    fn into_box_error(self) -> BoxError;
}

impl<E: Into<BoxError>> IntoBoxError for E {
    fn into_box_error(self) -> BoxError {
        self.into()
    }
}

/// Says "not `Send`" at the handler and not inside generated code.
pub fn handler_future_must_be_send<F: Future + Send>(future: F) -> F {
    future
}

/// Reads a command's key.
///
/// # Errors
/// When the key cannot be used.
pub fn key_of(key: &impl AsCommandKey) -> Result<CommandKey, HandlerFailure> {
    key.command_key().map_err(HandlerFailure::Key)
}
