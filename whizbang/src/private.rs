//! What generated code calls. Not part of the public interface: its shape changes with the macros,
//! which are pinned to the same version.
//!
//! The attributes judge a handler by the traits below and by nothing else. The generated questions
//! all have the form `<UserType as Trait>::item`, with every token at the user's own: asked in two
//! places they give the same error, which the compiler prints once, with the text that stands here.

use std::{any::TypeId, future::Future, panic::Location};

pub use crate::{
    command_key::{AsCommandKey, CommandKey},
    handler::{
        Argument, CommandSpec, Definition, ErasedCall, HandlerFailure, HandlerFuture,
        HandlerOptions, HandlerResult, HandlerSpec, Inputs, LazyFn, OnDead, PlainFn, Registered,
        Requirement, StoredError, TransactionFn,
    },
    message::{AsStreamKey, DeclaredEvent, HasReply, Message, MessageKind, StreamKey},
    registry::Registration,
};
pub use inventory;
pub use std::{
    option::Option::{None, Some},
    result::Result::Ok,
};
pub use whizbang_macros::beside;

use crate::{BoxError, Context, KeyPart, LazyContext, store::Store};

/// What a message must be able to do, as one bound: for types whose derive reported a fault.
pub trait Wire: serde::Serialize + serde::de::DeserializeOwned + Send + Sync + 'static {}

impl<T: serde::Serialize + serde::de::DeserializeOwned + Send + Sync + 'static> Wire for T {}

/// Who a handler is and where it stands.
pub struct Site {
    /// Its name in the database.
    pub name: &'static str,
    /// Rust path of the function.
    pub path: &'static str,
    /// Source file.
    pub file: &'static str,
    /// Line of the function.
    pub line: u32,
}

impl Site {
    /// The function whose name the call stands at.
    #[track_caller]
    pub fn here(name: &'static str, path: &'static str) -> Self {
        let place = Location::caller();
        Self {
            name,
            path,
            file: place.file(),
            line: place.line(),
        }
    }
}

/// What the attribute says about an idempotent command.
pub struct CommandOptions {
    /// `scope`, if given.
    pub scope: Option<&'static str>,
    /// `version`, or that of the package.
    pub version: &'static str,
    /// Set with `store_error`.
    pub stored_error: Option<StoredError>,
}

/// What an argument needs, asked when the service starts.
pub type Needs = fn() -> Requirement;

/// The first argument of a handler.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a message, so it cannot be the first argument of a handler",
    label = "the first argument is the message",
    note = "put the message first; its type declares itself with `#[derive(Serialize, Deserialize, Event)] #[message(name = \"orders.order_placed\")]` or with `Command` in place of `Event`"
)]
pub trait HandlerMessage: Sized {
    /// Decodes the message.
    ///
    /// # Errors
    /// When the payload does not fit the type.
    fn take(inputs: Inputs<'_>) -> Result<Self, HandlerFailure>;

    /// The handler of this message.
    fn define(site: Site, options: HandlerOptions, call: ErasedCall, needs: &[Needs])
    -> Definition;

    /// The handler of this command.
    fn define_command(
        site: Site,
        options: HandlerOptions,
        call: ErasedCall,
        needs: &[Needs],
        command: CommandOptions,
        key: fn(Inputs<'_>) -> Result<CommandKey, HandlerFailure>,
    ) -> Definition;
}

#[diagnostic::do_not_recommend]
impl<M: Message> HandlerMessage for M {
    fn take(inputs: Inputs<'_>) -> Result<Self, HandlerFailure> {
        inputs.message()
    }

    fn define(
        site: Site,
        options: HandlerOptions,
        call: ErasedCall,
        needs: &[Needs],
    ) -> Definition {
        Definition {
            spec: HandlerSpec {
                name: site.name,
                message: M::NAME,
                aliases: M::ALIASES,
                kind: M::KIND,
                message_type_id: TypeId::of::<M>,
                options,
                path: site.path,
                file: site.file,
                line: site.line,
            },
            call,
            requirements: needs.iter().map(|needs| needs()).collect(),
            command: None,
        }
    }

    fn define_command(
        site: Site,
        options: HandlerOptions,
        call: ErasedCall,
        needs: &[Needs],
        command: CommandOptions,
        key: fn(Inputs<'_>) -> Result<CommandKey, HandlerFailure>,
    ) -> Definition {
        Definition {
            command: Some(CommandSpec {
                scope: command.scope.unwrap_or(oldest_name::<M>()),
                version: command.version,
                stored_error: command.stored_error,
                key,
            }),
            ..Self::define(site, options, call, needs)
        }
    }
}

/// The first argument of an idempotent command's handler. Asked for by its associated types only:
/// what is asked of them next is not reported when there are none.
pub trait IsCommand {
    /// The command.
    type Itself;
    /// What it answers.
    type Reply;
}

#[diagnostic::do_not_recommend]
impl<C: HasReply> IsCommand for C {
    type Itself = C;
    type Reply = C::Reply;
}

/// The name under which a command was first known: its last alias, else its name.
///
/// Keys are stored under it, so a command that is renamed (its old name added in front of the
/// aliases) finds the keys of its past.
pub const fn oldest_name<M: Message>() -> &'static str {
    match M::ALIASES {
        [.., oldest] => oldest,
        [] => M::NAME,
    }
}

/// Types that may stand behind the one `&mut` of a handler.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler context",
    label = "only a context is taken by `&mut`",
    note = "take `&mut HandlerContext<'_>` for a transaction, or `&mut LazyContext<'_>` to open one later (both from `whizbang_postgres`)"
)]
pub trait IsContext {
    /// The shape of a function that takes this context.
    type Call;

    /// Erases the store.
    fn erase(call: Self::Call) -> ErasedCall;
}

impl<S: Store> IsContext for Context<'_, S> {
    type Call = TransactionFn<S>;

    fn erase(call: Self::Call) -> ErasedCall {
        ErasedCall::transaction(call)
    }
}

impl<S: Store> IsContext for LazyContext<'_, S> {
    type Call = LazyFn<S>;

    fn erase(call: Self::Call) -> ErasedCall {
        ErasedCall::lazy(call)
    }
}

/// Types whose context can run an idempotent command.
#[diagnostic::on_unimplemented(
    message = "an idempotent command needs `&mut HandlerContext<'_>`, not `&mut {Self}`",
    label = "the key is written in the same transaction as the effects",
    note = "take `cx: &mut HandlerContext<'_>` (from `whizbang_postgres`)"
)]
pub trait IsCommandContext {
    /// The shape of a function that takes this context.
    type Call;

    /// Erases the store.
    fn erase(call: Self::Call) -> ErasedCall;
}

impl<S: Store> IsCommandContext for Context<'_, S> {
    type Call = TransactionFn<S>;

    fn erase(call: Self::Call) -> ErasedCall {
        ErasedCall::transaction(call)
    }
}

/// Runs a handler: `make` takes its arguments and calls it, `finish` reads what it returned.
///
/// The name is part of the compiler's message about a future that is not `Send`.
pub fn handler_future_must_be_send<'a, M, F>(
    make: M,
    finish: fn(F::Output) -> HandlerResult,
) -> HandlerFuture<'a>
where
    M: FnOnce() -> Result<F, HandlerFailure> + Send + 'a,
    F: Future + Send + 'a,
{
    Box::pin(async move { finish(make()?.await) })
}

/// What a handler may return.
#[diagnostic::on_unimplemented(
    message = "a handler returns `Result<(), E>`, not `{Self}`",
    label = "neither `Ok(())` nor an error",
    note = "return `Result<(), E>` where `E` is your error type, `anyhow::Error` or `whizbang::BoxError`"
)]
pub trait HandlerReturn {
    /// The framework's own form.
    ///
    /// # Errors
    /// The handler's own.
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

/// What the handler of an idempotent command may return.
#[diagnostic::on_unimplemented(
    message = "the handler of this command returns `Result<{Reply}, E>`, not `{Self}`",
    label = "not the reply that the command declares",
    note = "the reply stands on the command: `#[message(name = \"…\", reply = OrderReceipt)]`; without it the reply is `()`"
)]
pub trait CommandReturn<Reply> {
    /// The framework's own form, with the reply encoded.
    ///
    /// # Errors
    /// The handler's own, or a reply that cannot be encoded.
    fn into_result(self) -> HandlerResult;
}

impl<Reply, E> CommandReturn<Reply> for Result<Reply, E>
where
    Reply: serde::Serialize + serde::de::DeserializeOwned,
    E: IntoBoxError,
{
    fn into_result(self) -> HandlerResult {
        match self {
            Ok(reply) => encode_reply(&reply)
                .map(Some)
                .map_err(HandlerFailure::Reply),
            Err(error) => Err(HandlerFailure::Returned(error.into_box_error())),
        }
    }
}

/// A reply that cannot be read back, such as one with a number that is none, must fail before the
/// commit: no repeat would ever get it.
fn encode_reply<Reply>(reply: &Reply) -> Result<String, serde_json::Error>
where
    Reply: serde::Serialize + serde::de::DeserializeOwned,
{
    let text = serde_json::to_string(reply)?;
    serde_json::from_str::<Reply>(&text)?;
    Ok(text)
}

/// Errors that can be kept as the answer of a command.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be stored as the answer of a command",
    label = "not an error that can be written and read again",
    note = "with `store_error` a handler returns an error type of its own: `#[derive(Debug, thiserror::Error, Serialize, Deserialize)]`; a variant that is never stored, such as a database error, is marked `#[serde(skip)]`"
)]
pub trait StorableError:
    std::error::Error + serde::Serialize + serde::de::DeserializeOwned + Send + Sync + 'static
{
}

#[diagnostic::do_not_recommend]
impl<E> StorableError for E where
    E: std::error::Error + serde::Serialize + serde::de::DeserializeOwned + Send + Sync + 'static
{
}

/// What the handler of an idempotent command with `store_error` may return.
#[diagnostic::on_unimplemented(
    message = "the handler of this command returns `Result<{Reply}, E>`, not `{Self}`",
    label = "not the reply that the command declares",
    note = "the reply stands on the command: `#[message(name = \"…\", reply = OrderReceipt)]`; without it the reply is `()`"
)]
pub trait StoringReturn<Reply> {
    /// The handler's error.
    type Error;

    /// The framework's own form; an error that is `chosen` is the command's answer.
    ///
    /// # Errors
    /// The handler's own, or a reply or error that cannot be encoded.
    fn into_result_storing(self, chosen: fn(&Self::Error) -> bool) -> HandlerResult;

    /// Reads a stored error.
    ///
    /// # Errors
    /// When the text does not fit the type.
    fn stored_error(text: &str) -> Result<BoxError, serde_json::Error>;
}

impl<Reply, E> StoringReturn<Reply> for Result<Reply, E>
where
    Reply: serde::Serialize + serde::de::DeserializeOwned,
    E: StorableError,
{
    type Error = E;

    fn into_result_storing(self, chosen: fn(&E) -> bool) -> HandlerResult {
        match self {
            Err(error) if chosen(&error) => Err(refused(error)),
            other => other.into_result(),
        }
    }

    fn stored_error(text: &str) -> Result<BoxError, serde_json::Error> {
        Ok(serde_json::from_str::<E>(text)?.into())
    }
}

/// An error that cannot be encoded, such as a skipped variant, is not stored: the handler's own
/// error is worth more than a complaint about it.
fn refused<E: StorableError>(error: E) -> HandlerFailure {
    match serde_json::to_string(&error) {
        Ok(json) => HandlerFailure::Refused {
            error: error.into(),
            json,
        },
        Err(fault) => {
            tracing::warn!(%error, %fault, "an error that `store_error` chose cannot be encoded, so it is not kept as the answer");
            HandlerFailure::Returned(error.into())
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

#[diagnostic::do_not_recommend]
impl<E: Into<BoxError>> IntoBoxError for E {
    fn into_box_error(self) -> BoxError {
        self.into()
    }
}

/// Reads a command's key.
///
/// # Errors
/// When the key cannot be used.
pub fn key_of(key: &impl AsCommandKey) -> Result<CommandKey, HandlerFailure> {
    key.command_key().map_err(HandlerFailure::Key)
}

/// Reads a command's key by a function.
///
/// # Errors
/// When the key cannot be used.
pub fn key_by<'a, C, K: AsCommandKey>(
    function: impl FnOnce(&'a C) -> K,
    command: &'a C,
) -> Result<CommandKey, HandlerFailure> {
    key_of(&function(command))
}

/// One field of a key of several fields, so that a field that cannot be one is named by itself.
pub fn key_part(part: &impl KeyPart) -> &dyn KeyPart {
    part
}
