//! Handlers as the runtime sees them: what they are called, what they need, how they are run.

use std::{
    any::{Any, TypeId, type_name},
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use crate::{
    BoxError, Context, DecodeError, LazyContext, Message, MessageKind, Metadata, Payload,
    store::Store,
};

/// Everything that a handler's arguments are taken from, besides the context.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    payload: &'a Payload,
    metadata: &'a Metadata,
    states: &'a States,
}

impl<'a> Inputs<'a> {
    /// Puts the inputs of one call together.
    pub fn new(payload: &'a Payload, metadata: &'a Metadata, states: &'a States) -> Self {
        Self {
            payload,
            metadata,
            states,
        }
    }

    /// The payload as the handler's message type.
    ///
    /// # Errors
    /// When the payload does not fit the type.
    pub fn message<M: Message>(&self) -> Result<M, HandlerFailure> {
        self.payload.decode().map_err(HandlerFailure::Undecodable)
    }

    /// The JSON text.
    pub fn payload(&self) -> &'a Payload {
        self.payload
    }

    /// What is known about the message.
    pub fn metadata(&self) -> &'a Metadata {
        self.metadata
    }

    /// The states given to the builder.
    pub fn states(&self) -> &'a States {
        self.states
    }
}

/// Values given to the builder with `.state(…)`, one per type.
#[derive(Clone, Default)]
pub struct States {
    values: HashMap<TypeId, Arc<dyn Any + Send + Sync>>,
}

impl States {
    /// Adds a value; a second one of the same type replaces the first.
    pub fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        self.values.insert(TypeId::of::<T>(), Arc::new(value));
    }

    /// The value of this type.
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.values
            .get(&TypeId::of::<T>())
            .and_then(|value| value.downcast_ref())
    }

    /// Whether a value of this type was given.
    pub fn contains(&self, id: TypeId) -> bool {
        self.values.contains_key(&id)
    }
}

/// A handler argument: a clone of the value of this type that the builder was given.
///
/// A handler that asks for a state the builder was not given is refused by `start()`.
///
/// ```
/// use whizbang::State;
/// #[derive(Clone)]
/// struct Mailer { from: String }
/// fn greet(State(mailer): State<Mailer>) -> String { mailer.from }
/// assert_eq!(greet(State(Mailer { from: "shop".into() })), "shop");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State<T>(pub T);

/// What a handler argument needs to be there when the service starts.
#[derive(Debug, Clone, Copy)]
pub enum Requirement {
    /// Always there.
    Nothing,
    /// A state of this type.
    State {
        /// Identity of the type.
        id: TypeId,
        /// Its name, for the error.
        name: &'static str,
    },
}

/// Types that handlers may take after the message, besides the context.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument of a handler",
    label = "not something the framework can hand over",
    note = "after the message a handler may take `&mut HandlerContext<'_>` (or `&mut LazyContext<'_>`), `State<T>` and `&Metadata`",
    note = "for a value of your own write `State(value): State<YourType>` and give it to the builder with `.state(value)`"
)]
pub trait Argument<'a>: Sized {
    /// What `start()` checks.
    const REQUIREMENT: fn() -> Requirement;
    /// Takes the argument from the inputs.
    ///
    /// # Errors
    /// When what was required is not there.
    fn extract(inputs: Inputs<'a>) -> Result<Self, HandlerFailure>;
}

impl<'a, T: Clone + Send + Sync + 'static> Argument<'a> for State<T> {
    const REQUIREMENT: fn() -> Requirement = || Requirement::State {
        id: TypeId::of::<T>(),
        name: type_name::<T>(),
    };

    fn extract(inputs: Inputs<'a>) -> Result<Self, HandlerFailure> {
        match inputs.states.get::<T>() {
            Some(value) => Ok(Self(value.clone())),
            None => Err(HandlerFailure::MissingState(type_name::<T>())),
        }
    }
}

impl<'a> Argument<'a> for &'a Metadata {
    const REQUIREMENT: fn() -> Requirement = || Requirement::Nothing;

    fn extract(inputs: Inputs<'a>) -> Result<Self, HandlerFailure> {
        Ok(inputs.metadata)
    }
}

/// How a call of a handler ended badly.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandlerFailure {
    /// The payload does not fit the type; retried, since a later version may understand it.
    #[error(transparent)]
    Undecodable(DecodeError),
    /// A state is missing; `start()` refuses this, a direct call may meet it.
    #[error("no state of type `{0}`; give it to the builder with `.state(value)`")]
    MissingState(&'static str),
    /// The handler's own error.
    #[error("the handler returned an error")]
    Returned(#[source] BoxError),
    /// The handler's own error, chosen by `store_error` to be the command's answer for good.
    #[error("the handler refused the command")]
    Refused {
        /// The error.
        #[source]
        error: BoxError,
        /// The same as JSON.
        json: String,
    },
    /// The key of a command cannot be used.
    #[error("the key of the command cannot be used")]
    Key(#[source] crate::KeyError),
    /// An idempotent command with a lazy context: its key must be written before its code runs.
    #[error("an idempotent command cannot have a lazy context; take `&mut HandlerContext<'_>`")]
    LazyCommand,
    /// The reply of a command could not be encoded, or not be read back.
    #[error("the reply of the command could not be encoded and read back")]
    Reply(#[source] serde_json::Error),
}

/// What a handler answers: nothing, or for a command the encoded reply.
pub type HandlerResult = Result<Option<String>, HandlerFailure>;

/// A running handler.
pub type HandlerFuture<'a> = Pin<Box<dyn Future<Output = HandlerResult> + Send + 'a>>;

/// Calls a handler that asks for no context.
pub type PlainFn = for<'a> fn(Inputs<'a>) -> HandlerFuture<'a>;
/// Calls a handler inside its transaction.
pub type TransactionFn<S> = for<'a, 'c> fn(&'a mut Context<'c, S>, Inputs<'a>) -> HandlerFuture<'a>;
/// Calls a handler that opens its transaction itself.
pub type LazyFn<S> = for<'a, 'c> fn(&'a mut LazyContext<'c, S>, Inputs<'a>) -> HandlerFuture<'a>;

/// A handler's function for one store.
pub enum Call<S: Store> {
    /// No transaction; completed in batches.
    Plain(PlainFn),
    /// Effects, outgoing messages and completion in one transaction.
    Transaction(TransactionFn<S>),
    /// Slow work first, then the same.
    Lazy(LazyFn<S>),
}

impl<S: Store> Clone for Call<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: Store> Copy for Call<S> {}

/// A handler's function with the store's type erased, so that registrations of all stores fit
/// into one list.
pub struct ErasedCall {
    store: Option<(TypeId, &'static str)>,
    call: Box<dyn Any + Send + Sync>,
}

impl ErasedCall {
    /// A handler without context; it runs on every store.
    pub fn plain(call: PlainFn) -> Self {
        Self {
            store: None,
            call: Box::new(call),
        }
    }

    /// A handler with a context.
    pub fn transaction<S: Store>(call: TransactionFn<S>) -> Self {
        Self::of::<S>(Call::Transaction(call))
    }

    /// A handler with a lazy context.
    pub fn lazy<S: Store>(call: LazyFn<S>) -> Self {
        Self::of::<S>(Call::Lazy(call))
    }

    fn of<S: Store>(call: Call<S>) -> Self {
        Self {
            store: Some((TypeId::of::<S>(), type_name::<S>())),
            call: Box::new(call),
        }
    }

    /// The function for this store; the error names the store that the handler was written for.
    ///
    /// # Errors
    /// When the handler's context belongs to another store.
    pub fn resolve<S: Store>(&self) -> Result<Call<S>, &'static str> {
        if let Some(plain) = self.call.downcast_ref::<PlainFn>() {
            return Ok(Call::Plain(*plain));
        }
        self.call
            .downcast_ref::<Call<S>>()
            .copied()
            .ok_or(self.store.map_or("another store", |(_, name)| name))
    }
}

/// What happens to the stream of a message that ended in the dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDead {
    /// The stream goes on with the next message.
    #[default]
    Continue,
    /// The stream stops until the dead letter is requeued or discarded.
    Park,
}

/// The options of `#[handler(…)]`; what is not given falls back to the runtime's defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HandlerOptions {
    /// Lane; handlers of one lane share one order per stream. Default: the handler alone.
    pub lane: Option<&'static str>,
    /// Attempts before the message ends in the dead letters.
    pub max_attempts: Option<u32>,
    /// Shortest and longest wait between attempts.
    pub backoff: Option<(Duration, Duration)>,
    /// How long one attempt may take.
    pub timeout: Option<Duration>,
    /// How many messages the handler may work on at once in one instance.
    pub concurrency: Option<usize>,
    /// What a dead letter means for its stream.
    pub on_dead: OnDead,
    /// Unique constraints whose violation says that the work was done before.
    pub already_done: &'static [&'static str],
}

impl HandlerOptions {
    /// No option given.
    pub const NONE: Self = Self {
        lane: None,
        max_attempts: None,
        backoff: None,
        timeout: None,
        concurrency: None,
        on_dead: OnDead::Continue,
        already_done: &[],
    };
}

/// The facts of a handler that are known at compile time.
#[derive(Debug, Clone, Copy)]
pub struct HandlerSpec {
    /// Identity in the database; renaming it makes another handler.
    pub name: &'static str,
    /// Wire name of the message it handles.
    pub message: &'static str,
    /// Older wire names it accepts.
    pub aliases: &'static [&'static str],
    /// Event or command.
    pub kind: MessageKind,
    /// Rust type of the message, to tell two types of one wire name apart.
    pub message_type_id: fn() -> TypeId,
    /// Options of the attribute.
    pub options: HandlerOptions,
    /// Rust path of the function.
    pub path: &'static str,
    /// Source file.
    pub file: &'static str,
    /// Line of the function.
    pub line: u32,
}

impl HandlerSpec {
    /// The lane: named, or the handler's own.
    pub fn lane(&self) -> &'static str {
        self.options.lane.unwrap_or(self.name)
    }

    /// All wire names it accepts.
    pub fn message_types(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.message).chain(self.aliases.iter().copied())
    }
}

/// What makes a handler an idempotent command.
#[derive(Debug, Clone, Copy)]
pub struct CommandSpec {
    /// Keys of different scopes never collide; the command's oldest wire name by default.
    pub scope: &'static str,
    /// Version of the handler, stored with each execution.
    pub version: &'static str,
    /// Reads a stored error; `None` if the handler keeps none.
    pub stored_error: Option<StoredError>,
    /// Reads the key from the payload.
    pub key: fn(Inputs<'_>) -> Result<crate::CommandKey, HandlerFailure>,
}

/// Reads an error that was stored as a command's answer.
pub type StoredError = fn(&str) -> Result<BoxError, serde_json::Error>;

/// A handler, ready to be registered.
pub struct Definition {
    /// Compile-time facts.
    pub spec: HandlerSpec,
    /// Its function.
    pub call: ErasedCall,
    /// What its arguments need.
    pub requirements: Vec<Requirement>,
    /// Set for idempotent commands.
    pub command: Option<CommandSpec>,
}

/// Implemented beside every annotated function, by a type of the function's own name, so that
/// `builder.register::<place_order>()` works.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler",
    label = "no registration stands beside this name",
    note = "annotate the function with `#[handler]` or `#[idempotent_command]` and register it by its name: `.register::<place_order>()`"
)]
pub trait Registered {
    /// The handler.
    fn definition() -> Definition;
}
