//! What can go wrong between a process and its database, to order.

use std::time::Duration;

/// A call of the store, as far as faults tell calls apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each is the store's method of that name")]
pub enum Operation {
    Register,
    Heartbeat,
    Deregister,
    Maintain,
    StoreInbox,
    StorePoison,
    Claim,
    NextInStream,
    CloseStreams,
    Report,
    CompleteBatch,
    MarkStarted,
    Renew,
    ReleaseLeases,
    Open,
    Begin,
    Complete,
    Fenced,
    Commit,
    Rollback,
    BeginCommand,
    FinishCommand,
    StoreOutbox,
    DeliverLocally,
    ClaimOutbox,
    CompleteOutbox,
    ReportOutbox,
    ReleaseRelay,
    CancelScheduled,
    DeadLetters,
    Requeue,
    DiscardDeadLetters,
    /// A handler's own statement on its connection.
    Statement,
}

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// It takes longer.
    Delay(Duration),
    /// The connection is lost. Before the effect nothing has happened; after it the effect is
    /// there and the answer is not. The server notices after `lingers` and rolls back what was
    /// open; until then its locks stay.
    Lost {
        /// How long the server keeps the transaction.
        lingers: Duration,
    },
    /// The connection is lost, and what was sent takes effect after this time all the same. For
    /// a commit only; other calls are lost after their effect.
    Late(Duration),
    /// Another transaction was in the way; this one is rolled back.
    Conflict,
    /// The whole process stops for this time, as by `SIGSTOP`, and then goes on.
    Stall(Duration),
    /// The process dies: this call and all further ones of the handle never return.
    Crash,
}

/// Decides about every call of one handle of the store.
pub trait Faults: Send + Sync + 'static {
    /// Asked before the call reaches the database.
    fn before(&self, operation: Operation) -> Fault;

    /// Asked when the effect is there and the answer is on its way.
    fn after(&self, operation: Operation) -> Fault;
}

/// Everything works.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoFaults;

impl Faults for NoFaults {
    fn before(&self, _operation: Operation) -> Fault {
        Fault::None
    }

    fn after(&self, _operation: Operation) -> Fault {
        Fault::None
    }
}
