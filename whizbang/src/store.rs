//! The contract between the runtime and the database.
//!
//! The runtime decides what happens to a message; the store makes it so, in whole steps: every
//! method is one transaction (or, where it takes a connection, part of the caller's). Three rules
//! hold for every implementation and are checked by one conformance suite:
//!
//! 1. **Fenced.** Completion, failure reports, renewals and releases carry the lease token and do
//!    nothing when the row is no longer leased under it.
//! 2. **Database time.** Leases and due times are measured by the store's clock, never by the
//!    caller's.
//! 3. **Repeatable.** A call whose answer was lost may be made again: stores find "already
//!    stored", completions find nothing to delete.

use std::{future::Future, time::Duration};

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use uuid::Uuid;

use crate::{CommandKey, Envelope, Headers, MessageKind, Payload};
pub use crate::{StoreError, StoreErrorKind};

/// Result of a store call.
pub type StoreResult<T> = Result<T, StoreError>;

/// Identity of a running process of a service; every start is a new one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// Fresh for every start.
    pub id: Uuid,
    /// Name of the service; one schema belongs to one service.
    pub service: String,
    /// Where it runs, for people.
    pub host: String,
}

/// One line of what a service listens to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Subscription {
    /// Name of the handler.
    pub handler: String,
    /// Wire name (or alias) it accepts.
    pub message_type: String,
    /// The handler's lane.
    pub lane: String,
}

/// The right to work on a row (and, for a stream, on the stream in its lane) until it ends.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Lease {
    /// Message.
    pub message_id: Uuid,
    /// Handler.
    pub handler: String,
    /// Lane of the handler.
    pub lane: String,
    /// Stream, if the message has one; then the lease is that of the whole stream.
    pub stream_id: Option<Uuid>,
    /// Made by the client, so that a lost answer can be recognised.
    pub token: Uuid,
}

/// A row to work on, leased to this instance.
#[derive(Debug, Clone)]
pub struct Work {
    /// The lease.
    pub lease: Lease,
    /// Wire name under which it was stored.
    pub message_type: String,
    /// The JSON text.
    pub payload: Payload,
    /// Everything that travelled with it.
    pub headers: Headers,
    /// Place in its stream.
    pub sequence: i64,
    /// Correlation id.
    pub correlation_id: Option<Uuid>,
    /// Causation id.
    pub causation_id: Option<Uuid>,
    /// Failed attempts so far.
    pub attempts: u32,
    /// Leases that ran out without a report since the last report.
    pub losses: u32,
    /// When it was stored.
    pub received_at: Option<DateTime<Utc>>,
}

/// Free room for rows of one handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    /// Handler.
    pub handler: String,
    /// Its lane.
    pub lane: String,
    /// At most so many rows without a stream and streams together. Of a stream that is taken, rows
    /// behind its first one may come as well, as far as this and the call's own limit allow.
    pub limit: usize,
}

/// Lets a store call lease what it stores to the caller at once, up to the free room.
#[derive(Debug, Clone)]
pub struct HandOver {
    /// Who leases.
    pub instance: Uuid,
    /// The token of these leases.
    pub token: Uuid,
    /// How long they last.
    pub lease: Duration,
    /// For which handlers.
    pub room: Vec<Room>,
}

/// Asks for due work.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    /// Who claims.
    pub instance: Uuid,
    /// The token of this claim's leases.
    pub token: Uuid,
    /// How long the leases last.
    pub lease: Duration,
    /// For which handlers, and how many of each.
    pub room: Vec<Room>,
    /// At most so many rows in all.
    pub limit: usize,
    /// At most so many rows of one stream.
    pub run: usize,
    /// Whether to look from the very start of the due rows instead of from the low watermark that
    /// the store remembers. Now and then this must be set, since a slow commit can become visible
    /// below the watermark.
    pub rescan: bool,
}

/// What became of stored envelopes.
#[derive(Debug, Clone, Default)]
pub struct StoreReport {
    /// Rows handed over, ready to run.
    pub leased: Vec<Work>,
    /// Handlers' rows stored and left for a claim.
    pub waiting: u64,
    /// Messages seen for the first time and stored.
    pub stored: u64,
    /// Messages known already.
    pub duplicates: u64,
    /// Of these, repeats that came with another payload.
    pub conflicts: Vec<Uuid>,
    /// Older than the deduplication window: dead letters.
    pub too_old: u64,
    /// Commands that nobody handles: dead letters.
    pub unhandled: u64,
    /// Events that nobody handles.
    pub dropped: u64,
}

/// A delivery that is not even an envelope.
#[derive(Debug, Clone)]
pub struct Poison {
    /// Id, if it had one.
    pub message_id: Option<Uuid>,
    /// Wire name, if it had one.
    pub message_type: Option<String>,
    /// The bytes as they came.
    pub raw: Vec<u8>,
    /// What was known besides.
    pub headers: Headers,
    /// Short code, such as `undecodable`.
    pub reason: &'static str,
    /// Why.
    pub error: String,
}

/// What is to happen with a leased row that did not complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// An attempt failed; due again after this time.
    Retry(Duration),
    /// Not an attempt; due again after this time.
    Snooze(Duration),
    /// It never began; due at once.
    Release,
    /// Over: dead letter.
    Dead {
        /// Short code, such as `failed` or `permanent`.
        reason: &'static str,
        /// Whether the stream stops until the dead letter is dealt with.
        park: bool,
    },
}

/// The report on a leased row that did not complete.
#[derive(Debug, Clone)]
pub struct Report {
    /// The row.
    pub lease: Lease,
    /// What is to happen.
    pub action: Action,
    /// The chain of errors.
    pub error: Option<String>,
}

/// Isolation level of a handler's transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Isolation {
    /// The default.
    #[default]
    ReadCommitted,
    /// One snapshot for the whole handler.
    RepeatableRead,
    /// As if handlers ran one after another.
    Serializable,
}

/// How a handler's transaction is opened.
#[derive(Debug, Clone)]
pub struct TransactionOptions {
    /// Token that the completion checks; gone if the handler ends the transaction itself.
    pub fence: Uuid,
    /// Longest time for one statement, and for doing nothing inside the transaction.
    pub timeout: Duration,
    /// Isolation level.
    pub isolation: Isolation,
}

/// What a completion inside the handler's transaction found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completion {
    /// Done; nothing of the stream is left.
    Done,
    /// Done, and the stream goes on: the caller still holds its lease.
    More,
    /// The lease belongs to somebody else: roll back.
    Lost,
    /// The handler ended its own transaction: its writes may be committed without completion.
    Unfenced,
}

/// What is known about a command key when its transaction begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandState {
    /// Never seen: the key is written, run the handler now.
    Fresh,
    /// Executed before with the same payload: here is what it came to.
    Done(CommandAnswer),
    /// Executed before with another payload.
    Reused {
        /// Fingerprint of the payload that was executed.
        stored: Vec<u8>,
    },
    /// Somebody executes it right now.
    Busy,
    /// At this isolation level a concurrent execution is invisible: retry the whole transaction.
    Isolated,
    /// Begun and never ended: its handler ended the transaction itself, or executes itself.
    Unfinished,
}

/// What a command came to: recorded beside its key and given to every repeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandAnswer {
    /// The reply's JSON text.
    Reply(Option<String>),
    /// The JSON text of an error that was chosen to be the answer for good.
    Error(String),
}

/// Which command is about to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandRun {
    /// Scope of the key.
    pub scope: String,
    /// The key.
    pub key: CommandKey,
    /// Hash of the payload.
    pub fingerprint: [u8; 32],
    /// Version of the handler, stored for people who look at the row.
    pub version: String,
}

/// A row for the outbox.
#[derive(Debug, Clone)]
pub struct OutboxDraft {
    /// The message.
    pub envelope: Envelope,
    /// Where it goes.
    pub destination: String,
    /// When it may leave.
    pub when: Schedule,
}

/// When a message may leave the outbox, by the database's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Schedule {
    /// As soon as the transaction commits.
    #[default]
    Now,
    /// After this time.
    After(Duration),
    /// At this time.
    At(DateTime<Utc>),
}

/// A row claimed from the outbox.
#[derive(Debug, Clone)]
pub struct OutboxRow {
    /// The message; `headers.sent_at` is filled in.
    pub envelope: Envelope,
    /// Refusals so far.
    pub attempts: u32,
    /// When it was written.
    pub created_at: DateTime<Utc>,
}

/// The report on an outbox row that the transport refused.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// Message.
    pub message_id: Uuid,
    /// Again after this time, or `None` for a dead letter.
    pub retry: Option<Duration>,
    /// Why.
    pub error: String,
}

/// What a local delivery did.
#[derive(Debug, Clone, Default)]
pub struct LocalDelivery {
    /// Outbox rows moved.
    pub moved: u64,
    /// As for any store call.
    pub report: StoreReport,
}

/// What a heartbeat found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Heartbeat {
    /// Whether the others still take this instance for alive.
    pub known: bool,
    /// Peers that were declared dead.
    pub dead_peers: u32,
    /// Leases of theirs that were released.
    pub released: u64,
}

/// One line of a maintenance report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MaintenanceTask {
    /// Name of the task.
    pub task: String,
    /// Rows it dealt with.
    pub affected: u64,
}

/// A message that ended for good.
#[derive(Debug, Clone)]
pub struct DeadLetter {
    /// Its number.
    pub id: i64,
    /// `inbox`, `outbox` or `transport`.
    pub source: String,
    /// Message id, if it had one.
    pub message_id: Option<Uuid>,
    /// Handler that gave up.
    pub handler: Option<String>,
    /// Destination that refused.
    pub destination: Option<String>,
    /// Wire name.
    pub message_type: Option<String>,
    /// The JSON text.
    pub payload: Option<String>,
    /// Bytes that were no message.
    pub raw: Option<Vec<u8>>,
    /// Attempts that were made.
    pub attempts: u32,
    /// Short code of why.
    pub reason: String,
    /// The chain of errors.
    pub error: Option<String>,
    /// Whether its stream waits for a decision.
    pub parked: bool,
    /// When it ended.
    pub died_at: DateTime<Utc>,
}

/// What became of a dead letter that was to be requeued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requeued {
    /// Its number.
    pub id: i64,
    /// `requeued`, `unhandled` or `not_requeueable`.
    pub outcome: String,
}

/// The database behind the runtime.
///
/// The associated types let a handler's transaction be the driver's own: `whizbang-postgres` puts
/// `sqlx::Transaction` and `PgConnection` here.
pub trait Store: Clone + Send + Sync + 'static {
    /// What queries run on inside a transaction.
    type Connection: Send;
    /// A connection taken from the pool, kept for several transactions.
    type Session: Send;
    /// An open transaction.
    type Transaction<'s>: Send;

    // ---- the service -------------------------------------------------------------------------

    /// Looks whether this service could start here, and changes nothing: asked when the start is
    /// refused already, so that one error names everything. [`register`](Self::register) checks
    /// the same. By default there is nothing that could be wrong.
    fn check_setup(&self, service: &str) -> impl Future<Output = StoreResult<()>> + Send {
        let _ = service;
        std::future::ready(Ok(()))
    }

    /// Checks the schema and claims it for the service, then writes the instance and its
    /// subscriptions.
    fn register(
        &self,
        instance: &Instance,
        subscriptions: &[Subscription],
    ) -> impl Future<Output = StoreResult<()>> + Send;

    /// Says that the instance lives, and releases what dead peers held.
    fn heartbeat(
        &self,
        instance: &Instance,
        subscriptions: &[Subscription],
        dead_after: Duration,
        lease: Duration,
    ) -> impl Future<Output = StoreResult<Heartbeat>> + Send;

    /// Takes the instance off the list and gives back what it still holds; nothing is counted as
    /// a loss. `lease` is how long its leases last at most.
    fn deregister(
        &self,
        instance: Uuid,
        lease: Duration,
    ) -> impl Future<Output = StoreResult<()>> + Send;

    /// Gives back what the instance leased under these tokens, counting nothing; returns how many
    /// rows and streams. For leases of a call whose answer was lost, which nobody works on.
    fn release_leases(
        &self,
        instance: Uuid,
        tokens: &[Uuid],
        lease: Duration,
    ) -> impl Future<Output = StoreResult<u64>> + Send;

    /// One bounded round of housekeeping.
    fn maintain(&self) -> impl Future<Output = StoreResult<Vec<MaintenanceTask>>> + Send;

    /// How many connections handlers may use at once; `None` if there is no limit.
    fn connection_limit(&self) -> Option<usize>;

    // ---- inbox -------------------------------------------------------------------------------

    /// Stores what is new, one row for each subscribed handler.
    fn store_inbox(
        &self,
        envelopes: &[Envelope],
        hand_over: Option<&HandOver>,
    ) -> impl Future<Output = StoreResult<StoreReport>> + Send;

    /// Keeps what could not be understood.
    fn store_poison(&self, poison: &[Poison]) -> impl Future<Output = StoreResult<()>> + Send;

    /// Leases due work.
    fn claim(&self, request: &ClaimRequest) -> impl Future<Output = StoreResult<Vec<Work>>> + Send;

    /// The next rows of a stream whose lease the caller holds; renews it. Nothing left: the
    /// stream is given back.
    fn next_in_stream(
        &self,
        held: &Lease,
        lease: Duration,
        run: usize,
        handlers: &[String],
    ) -> impl Future<Output = StoreResult<Vec<Work>>> + Send;

    /// Gives streams back that the caller still holds.
    fn close_streams(&self, held: &[Lease]) -> impl Future<Output = StoreResult<()>> + Send;

    /// Reports rows that did not complete; says for each whether the lease still held.
    fn report(&self, reports: &[Report]) -> impl Future<Output = StoreResult<Vec<bool>>> + Send;

    /// Completes rows of handlers without transaction; says for each whether the lease held.
    fn complete_batch(
        &self,
        leases: &[Lease],
    ) -> impl Future<Output = StoreResult<Vec<bool>>> + Send;

    /// Notes that a suspect is about to run alone; `false` if the lease is lost.
    fn mark_started(&self, lease: &Lease) -> impl Future<Output = StoreResult<bool>> + Send;

    /// Makes leases last longer; returns those that still hold.
    fn renew(
        &self,
        held: &[Lease],
        lease: Duration,
    ) -> impl Future<Output = StoreResult<Vec<Lease>>> + Send;

    // ---- the handler's transaction -----------------------------------------------------------

    /// Takes a connection from the pool.
    fn open(&self) -> impl Future<Output = StoreResult<Self::Session>> + Send;

    /// Opens a handler's transaction, in one round trip.
    fn begin<'s>(
        &self,
        session: &'s mut Self::Session,
        options: &TransactionOptions,
    ) -> impl Future<Output = StoreResult<Self::Transaction<'s>>> + Send;

    /// A transaction inside the caller's own: it can fail without ending the outer one.
    fn nested<'t>(
        transaction: &'t mut Self::Transaction<'_>,
    ) -> impl Future<Output = StoreResult<Self::Transaction<'t>>> + Send;

    /// The connection of an open transaction.
    fn connection<'t>(transaction: &'t mut Self::Transaction<'_>) -> &'t mut Self::Connection;

    /// Completes the row inside the handler's transaction. `last`: the caller has no further row
    /// of this stream, so the stream may be given back.
    fn complete(
        &self,
        connection: &mut Self::Connection,
        lease: &Lease,
        last: bool,
    ) -> impl Future<Output = StoreResult<Completion>> + Send;

    /// Whether the transaction is still the one that was opened with this fence.
    fn fenced(
        &self,
        connection: &mut Self::Connection,
        fence: Uuid,
    ) -> impl Future<Output = StoreResult<bool>> + Send;

    /// Commits. Boxed like [`rollback`](Self::rollback): an opaque future that holds a generic
    /// associated type makes callers not `Send` (rust-lang/rust#100013).
    fn commit<'s>(transaction: Self::Transaction<'s>) -> BoxFuture<'s, StoreResult<()>>;

    /// Rolls back and leaves the session usable.
    fn rollback<'s>(transaction: Self::Transaction<'s>) -> BoxFuture<'s, StoreResult<()>>;

    /// What kind of database error hides in the chain of an error that a handler returned, if
    /// any: the runtime repeats conflicts at once and counts no attempt while the database is
    /// away.
    fn classify(error: &(dyn std::error::Error + 'static)) -> Option<StoreErrorKind>;

    /// The name of the unique constraint whose violation hides in the chain of an error that a
    /// handler returned, if any.
    fn violated_unique<'e>(error: &'e (dyn std::error::Error + 'static)) -> Option<&'e str>;

    /// Gives a connection at rest back to the pool, without waiting for anything. One that has gone
    /// silent since must not keep its place there.
    fn give_back(&self, session: Self::Session) {
        drop(session);
    }

    /// Closes a connection that may still be busy; it never goes back to the pool.
    fn discard(session: Self::Session);

    // ---- idempotent commands -----------------------------------------------------------------

    /// Writes the key, before the user's code, or finds what is known of it.
    fn begin_command(
        &self,
        connection: &mut Self::Connection,
        run: &CommandRun,
    ) -> impl Future<Output = StoreResult<CommandState>> + Send;

    /// Writes beside the key what the command came to. `false`, and nothing is written, if the
    /// transaction that wrote the key is no longer open: its handler ended it.
    fn finish_command(
        &self,
        connection: &mut Self::Connection,
        run: &CommandRun,
        answer: &CommandAnswer,
    ) -> impl Future<Output = StoreResult<bool>> + Send;

    // ---- outbox ------------------------------------------------------------------------------

    /// Writes rows in the caller's transaction; says for each whether it is new.
    fn store_outbox(
        &self,
        connection: &mut Self::Connection,
        drafts: &[OutboxDraft],
    ) -> impl Future<Output = StoreResult<Vec<bool>>> + Send;

    /// Whether a transaction is open on the connection.
    fn in_transaction(
        &self,
        connection: &mut Self::Connection,
    ) -> impl Future<Output = StoreResult<bool>> + Send;

    /// Moves rows from the outbox to the inbox of the same service, exactly once.
    fn deliver_locally(
        &self,
        destination: &str,
        limit: usize,
        hand_over: Option<&HandOver>,
    ) -> impl Future<Output = StoreResult<LocalDelivery>> + Send;

    /// The next rows for a destination; one instance at a time gets any.
    fn claim_outbox(
        &self,
        destination: &str,
        limit: usize,
        lease: Duration,
        token: Uuid,
        instance: Uuid,
    ) -> impl Future<Output = StoreResult<Vec<OutboxRow>>> + Send;

    /// Removes rows that the transport acknowledged.
    fn complete_outbox(
        &self,
        destination: &str,
        token: Uuid,
        ids: &[Uuid],
    ) -> impl Future<Output = StoreResult<u64>> + Send;

    /// Reports rows that the transport refused. `false`, and nothing is changed, if another relay
    /// has taken over.
    fn report_outbox(
        &self,
        destination: &str,
        token: Uuid,
        refusals: &[Refusal],
    ) -> impl Future<Output = StoreResult<bool>> + Send;

    /// Lets another instance relay to the destination at once.
    fn release_relay(
        &self,
        destination: &str,
        instance: Uuid,
    ) -> impl Future<Output = StoreResult<()>> + Send;

    /// Cancels messages that are scheduled and have not left; returns how many.
    fn cancel_scheduled(&self, ids: &[Uuid]) -> impl Future<Output = StoreResult<u64>> + Send;

    // ---- dead letters ------------------------------------------------------------------------

    /// Dead letters with a number above `after`, oldest first.
    fn dead_letters(
        &self,
        after: i64,
        limit: usize,
    ) -> impl Future<Output = StoreResult<Vec<DeadLetter>>> + Send;

    /// Puts dead letters back to work.
    fn requeue(&self, ids: &[i64]) -> impl Future<Output = StoreResult<Vec<Requeued>>> + Send;

    /// Throws dead letters away; returns how many.
    fn discard_dead_letters(&self, ids: &[i64]) -> impl Future<Output = StoreResult<u64>> + Send;
}

/// Something with a transaction open on the store's database: what `publish` and `send` take.
///
/// Implement it for your own wrapper of a transaction.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an open transaction",
    label = "a message is published inside a transaction, so that it leaves only if your writes commit",
    note = "begin one and pass it: `let mut tx = pool.begin().await?; dispatcher.publish(&mut tx, &event).await?; tx.commit().await?;`"
)]
pub trait InTransaction<S: Store>: Send {
    /// The connection with the open transaction.
    fn transaction_connection(&mut self) -> &mut S::Connection;
}

/// Message kinds as the store's flags.
impl MessageKind {
    /// Whether it is a command.
    pub fn is_command(self) -> bool {
        self == Self::Command
    }
}
