//! Errors of the framework, and how a handler's error decides what happens next.

use std::{error::Error as StdError, fmt, time::Duration};

use uuid::Uuid;

/// Any error, as handlers may return it.
pub type BoxError = Box<dyn StdError + Send + Sync + 'static>;

/// A payload that does not fit its message type.
#[derive(Debug, thiserror::Error)]
#[error("the payload does not fit message type `{message_type}`")]
pub struct DecodeError {
    /// Wire name of the type that was expected.
    pub message_type: &'static str,
    /// What the decoder says, with line and column.
    #[source]
    pub source: serde_json::Error,
}

/// How the store failed, as far as the runtime must tell cases apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreErrorKind {
    /// The database is away, read-only, full or out of connections: wait and try again.
    Unavailable,
    /// Another transaction was in the way (serialization failure, deadlock): run it again.
    Conflict,
    /// The transaction had failed before, because the handler swallowed a database error.
    Aborted,
    /// The answer to `COMMIT` was lost: the effects are there once or not at all, nobody knows.
    CommitUnknown,
    /// The set-up is wrong: schema, privileges or settings.
    Setup,
    /// The data cannot be stored, whoever tries: malformed, against a constraint, or too large.
    Data,
    /// Anything else.
    Other,
}

/// An error of the database behind the store.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct StoreError {
    /// What to do about it.
    pub kind: StoreErrorKind,
    /// What the store was doing, and for set-up faults what to do.
    pub what: String,
    /// The driver's own error.
    #[source]
    pub source: Option<BoxError>,
}

impl StoreError {
    /// An error of this kind.
    pub fn new(kind: StoreErrorKind, what: impl Into<String>, source: impl Into<BoxError>) -> Self {
        Self {
            kind,
            what: what.into(),
            source: Some(source.into()),
        }
    }

    /// An error of this kind that has no further cause.
    pub fn message(kind: StoreErrorKind, what: impl Into<String>) -> Self {
        Self {
            kind,
            what: what.into(),
            source: None,
        }
    }
}

/// Why a message could not be published or sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The message's `Serialize` failed.
    #[error("failed to encode message `{message_type}`")]
    Encode {
        /// Wire name of the message.
        message_type: &'static str,
        /// What the encoder says.
        #[source]
        source: serde_json::Error,
    },
    /// The encoded message is larger than the limit.
    #[error(
        "message `{message_type}` has {size} bytes, the limit is {limit}; raise `message_limit` or store the bulk elsewhere and send a reference"
    )]
    TooLarge {
        /// Wire name of the message.
        message_type: &'static str,
        /// Size of the JSON text in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// A header holds a character that cannot be stored.
    #[error("header `{name}` contains a NUL character, which PostgreSQL and brokers cannot carry")]
    Header {
        /// Name of the header.
        name: String,
    },
    /// The id given is the nil UUID.
    #[error("the message id is the nil UUID; leave it out or give each message an id of its own")]
    NilId,
    /// The message repeats an id that waits in the outbox already.
    #[error("a message with id {id} waits in the outbox already")]
    DuplicateId {
        /// The repeated id.
        id: Uuid,
    },
    /// The message was addressed to an outbox destination that nothing serves.
    #[error(
        "no destination `{destination}` for message `{message_type}`; there are {known}: add a `.transport(…)` of that name to the builder, or correct `.to(…)`"
    )]
    UnknownDestination {
        /// Wire name of the message.
        message_type: String,
        /// What was asked for.
        destination: String,
        /// The service and its transports.
        known: String,
    },
    /// `publish_on` was given a connection without an open transaction.
    #[error(
        "no transaction is open on this connection; begin one, so that the message leaves only if your writes commit"
    )]
    NoTransaction,
    /// The database refused.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What is to happen with a message whose handler failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Again after the handler's backoff, or after the given time; counts as an attempt.
    Retry(Option<Duration>),
    /// Again after this time, keeping its place; no attempt is counted.
    Snooze(Duration),
    /// Never again: dead letter at once.
    Permanent,
}

/// An error with a decision. Any other error a handler returns means "retry with backoff".
///
/// The runtime looks for it in the whole chain of sources, so it may be wrapped by `anyhow` or by
/// your own error type (as `#[source]`).
///
/// ```
/// use whizbang::{BoxError, HandlerError};
/// fn charge(card: &str) -> Result<(), BoxError> {
///     if card.is_empty() {
///         return Err(HandlerError::permanent("no card on file").into());
///     }
///     Ok(())
/// }
/// assert!(charge("").is_err());
/// ```
#[derive(Debug)]
pub struct HandlerError {
    decision: Decision,
    source: Option<BoxError>,
}

impl HandlerError {
    /// Retrying cannot help: dead letter at once.
    pub fn permanent(cause: impl Into<BoxError>) -> Self {
        Self::with(Decision::Permanent, Some(cause.into()))
    }

    /// Again with the handler's backoff.
    pub fn retry(cause: impl Into<BoxError>) -> Self {
        Self::with(Decision::Retry(None), Some(cause.into()))
    }

    /// Again after this time instead of the handler's backoff.
    pub fn retry_after(delay: Duration, cause: impl Into<BoxError>) -> Self {
        Self::with(Decision::Retry(Some(delay)), Some(cause.into()))
    }

    /// Not now: again after this time, without counting an attempt.
    pub fn snooze(delay: Duration) -> Self {
        Self::with(Decision::Snooze(delay), None)
    }

    /// What is to happen.
    pub fn decision(&self) -> Decision {
        self.decision
    }

    fn with(decision: Decision, source: Option<BoxError>) -> Self {
        Self { decision, source }
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.decision {
            Decision::Retry(None) => write!(f, "handler asks for a retry"),
            Decision::Retry(Some(delay)) => write!(f, "handler asks for a retry after {delay:?}"),
            Decision::Snooze(delay) => write!(f, "handler asks to wait {delay:?}"),
            Decision::Permanent => write!(f, "handler gives up for good"),
        }
    }
}

impl StdError for HandlerError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source
            .as_ref()
            .map(|cause| &**cause as &(dyn StdError + 'static))
    }
}

/// The decision hidden in a chain of errors; "retry with backoff" if there is none.
pub fn decision_of(error: &(dyn StdError + 'static)) -> Decision {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(decided) = error.downcast_ref::<HandlerError>() {
            return decided.decision;
        }
        next = error.source();
    }
    Decision::Retry(None)
}

/// Longest error text that is stored with a message, in bytes.
pub const MAX_ERROR_BYTES: usize = 16 * 1024;

/// The error and its causes as one line of text that PostgreSQL can store: NUL characters are
/// replaced and what is over [`MAX_ERROR_BYTES`] is cut off.
pub fn error_chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        // Wrappers that print their cause themselves would say everything twice.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        if text.len() > MAX_ERROR_BYTES {
            break;
        }
        next = cause.source();
    }
    storable_text(text)
}

/// Makes any text storable: no NUL, bounded length.
pub fn storable_text(mut text: String) -> String {
    if text.contains('\0') {
        text = text.replace('\0', "\u{FFFD}");
    }
    if text.len() > MAX_ERROR_BYTES {
        let mut end = MAX_ERROR_BYTES;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push_str(" … (cut)");
    }
    text
}

/// One thing that keeps a service from starting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartFault {
    /// Nothing was registered.
    #[error(
        "no handlers were found; usual causes: the crate with the handlers is named nowhere in the program (write `whizbang::link!(that_crate);` in main.rs), or the handlers are in the package's lib.rs and main.rs does not use it; handlers can also be given with `.register::<name>()`, and a service that only publishes says so with `.publish_only()`"
    )]
    NoHandlers,
    /// Fewer or more handlers than `expect_handlers` said.
    #[error("{found} handlers were found, {expected} were expected: {names}")]
    HandlerCount {
        /// What was expected.
        expected: usize,
        /// What was found.
        found: usize,
        /// The names found.
        names: String,
    },
    /// Two handlers of one name.
    #[error(
        "two handlers are named `{name}`: {first} and {second}; give one of them `name = \"…\"`"
    )]
    SameName {
        /// The name.
        name: String,
        /// File and line of the one.
        first: String,
        /// File and line of the other.
        second: String,
    },
    /// Two handlers for one command.
    #[error(
        "command `{command}` has two handlers, {first} and {second}; a command has exactly one"
    )]
    TwoForCommand {
        /// Wire name.
        command: String,
        /// File and line of the one.
        first: String,
        /// File and line of the other.
        second: String,
    },
    /// Two types of one wire name.
    #[error(
        "two types claim the wire name `{name}`, handled at {first} and {second}; give one of them another name"
    )]
    SameWireName {
        /// The wire name.
        name: String,
        /// File and line of the one.
        first: String,
        /// File and line of the other.
        second: String,
    },
    /// Two commands whose keys are in one scope.
    #[error(
        "the commands handled at {first} and {second} have their keys in one scope, `{scope}`: one would be given the other's replies; give each a `scope` of its own"
    )]
    SameScope {
        /// The scope.
        scope: String,
        /// File and line of the one.
        first: String,
        /// File and line of the other.
        second: String,
    },
    /// A name that cannot be stored.
    #[error("the name `{name}` at {place} {fault}")]
    BadName {
        /// The name.
        name: String,
        /// File and line.
        place: String,
        /// What is wrong with it.
        fault: &'static str,
    },
    /// A handler asks for a state that the builder was not given.
    #[error(
        "handler `{handler}` at {place} asks for `State<{state}>`, which the builder was not given; add `.state(value)`"
    )]
    MissingState {
        /// The handler.
        handler: String,
        /// File and line.
        place: String,
        /// The type.
        state: &'static str,
    },
    /// A handler's context belongs to another store.
    #[error(
        "handler `{handler}` at {place} was written for `{store}`, this service runs on another store"
    )]
    WrongStore {
        /// The handler.
        handler: String,
        /// File and line.
        place: String,
        /// The store it was written for.
        store: &'static str,
    },
    /// A handler's own limit is above the connections of the pool.
    #[error(
        "handler `{handler}` at {place} wants concurrency {wanted}, the pool has {limit} connections; lower it or raise `max_connections`"
    )]
    HandlerConcurrency {
        /// The handler.
        handler: String,
        /// File and line.
        place: String,
        /// What it wants.
        wanted: usize,
        /// What there is.
        limit: usize,
    },
    /// More concurrency than connections.
    #[error(
        "concurrency {wanted} is above the {limit} connections of the pool; raise `max_connections` or leave concurrency unset, then it adapts"
    )]
    Concurrency {
        /// What was asked for.
        wanted: usize,
        /// What the pool has.
        limit: usize,
    },
    /// A setting outside its range.
    #[error("{0}")]
    Setting(String),
    /// The store could not be started on either; alone it is [`StartError::Store`].
    #[error("the store refuses the start: {0}")]
    Store(String),
}

/// Why a service did not start. `Debug` is the same text as `Display`, since that is what a `main`
/// that returns it prints.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// What can be known without the database; all of it at once, and what the store has to say.
    #[error("the service cannot start:{}", list(.0))]
    Faults(Vec<StartFault>),
    /// The database or its schema.
    #[error("the store refused the start: {}", error_chain(.0))]
    Store(#[from] StoreError),
    /// A transport.
    #[error("a transport refused the start: {}", error_chain(.0))]
    Transport(#[from] crate::transport::TransportError),
}

impl std::fmt::Debug for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

fn list(faults: &[StartFault]) -> String {
    faults
        .iter()
        .map(|fault| format!("\n  - {fault}"))
        .collect()
}

/// Why a command could not be executed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecuteError {
    /// The handler returned an error; everything was rolled back and the key is free again.
    #[error("the command failed and was rolled back: {}", error_chain(&**.0))]
    Handler(#[source] BoxError),
    /// The handler refused the command with an error that `store_error` keeps: it is the recorded
    /// answer, and every repeat gets it. The source is the handler's own error type.
    #[error("the command was refused, and every repeat with the same key gets the same answer")]
    Refused(#[source] BoxError),
    /// A unique constraint that `already_done` names says that it was done by other means before;
    /// everything was rolled back and no reply is recorded.
    #[error(
        "the command was done before by other means: unique constraint `{constraint}` holds its row already; read the result from there"
    )]
    AlreadyDone {
        /// The constraint.
        constraint: String,
    },
    /// The same key was used for a command with another payload.
    #[error(
        "key `{key}` of `{scope}` was used for another payload before (stored {stored}, given {given}); a retry must repeat the request exactly, a new request needs a new key"
    )]
    KeyReused {
        /// Scope of the key.
        scope: String,
        /// The key.
        key: String,
        /// Fingerprint of the executed payload, in hexadecimal.
        stored: String,
        /// Fingerprint of this payload, in hexadecimal.
        given: String,
    },
    /// Somebody else executes the same command, and did not finish in time.
    #[error(
        "the same command is being executed and did not finish within {waited:?}; it is safe to try again with the same key"
    )]
    InProgress {
        /// How long this call waited.
        waited: Duration,
    },
    /// The handler took longer than its timeout; everything was rolled back.
    #[error(
        "the command took longer than {0:?} and was rolled back; it is safe to try again with the same key"
    )]
    Timeout(Duration),
    /// The handler panicked; everything was rolled back.
    #[error("the command's handler panicked and was rolled back: {0}")]
    Panicked(String),
    /// The handler ended its own transaction.
    #[error(
        "the command's handler ended its own transaction with COMMIT or ROLLBACK; what it wrote before may be committed without the command being recorded, remove the statement from the handler"
    )]
    Unfenced,
    /// At this isolation level a concurrent execution cannot be seen.
    #[error(
        "this transaction met a concurrent one that its snapshot cannot see, perhaps another execution of the same command; roll it back and retry the whole transaction"
    )]
    RetryTransaction(#[source] Option<StoreError>),
    /// The key was begun before and never ended.
    #[error(
        "key `{key}` of `{scope}` was begun and never ended: its handler ended the transaction itself, or it executes its own command; check what it has written, then delete the row from `wh_command_results` to run it again"
    )]
    Unfinished {
        /// Scope of the key.
        scope: String,
        /// The key.
        key: String,
    },
    /// No handler for the command in this program.
    #[error(
        "no handler for command `{0}` in this program; register one, or use `send` to reach the service that has it"
    )]
    NoHandler(&'static str),
    /// The handler exists but is not an idempotent command.
    #[error(
        "the handler of `{0}` is not an idempotent command; annotate it with `#[idempotent_command(key = …)]`, or use `send`"
    )]
    NotIdempotent(&'static str),
    /// The JSON does not fit the command's type.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The payload could not be encoded, or is too large.
    #[error(transparent)]
    Payload(#[from] PublishError),
    /// The key cannot be used.
    #[error(transparent)]
    Key(#[from] crate::KeyError),
    /// The stored answer does not fit its type any more.
    #[error(
        "the stored answer of key `{key}` does not fit the type of the reply or error; keep these types compatible for as long as results are kept"
    )]
    Reply {
        /// The key.
        key: String,
        /// What the decoder says.
        #[source]
        source: serde_json::Error,
    },
    /// The outcome of the commit is unknown; a repeat with the same key finds out.
    #[error(
        "the answer to COMMIT was lost; repeat the command with the same key to learn the result"
    )]
    Unknown(#[source] StoreError),
    /// The database.
    #[error("the database failed; it is safe to try again with the same key")]
    Store(#[from] StoreError),
}
