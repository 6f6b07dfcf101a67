//! Mistakes to order: they show that a checker notices.

/// A promise that the store breaks on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Flaw {
    /// Completion does not look at the lease's token.
    CompletesUnderAnyToken,
    /// Completion does not mind that the row is gone.
    CompletesMissingRows,
    /// A known message id is stored again.
    ForgetsMessageIds,
    /// Every second row of the outbox is forgotten when the transaction commits.
    LosesOutboxRows,
    /// What a handler wrote stays when its transaction is rolled back.
    KeepsRolledBackEffects,
    /// A row that was completed stays in the inbox.
    KeepsCompletedRows,
    /// A stream's gate is ignored, so that several of its messages run at once.
    IgnoresGates,
    /// A failed message goes to the end of its stream.
    RetriesAtTheEnd,
    /// A lease that ran out is not taken over.
    NeverTakesOver,
    /// The key of a command is not remembered.
    ForgetsCommandKeys,
    /// Local delivery leaves the row in the outbox half of the time.
    DeliversTwice,
}
