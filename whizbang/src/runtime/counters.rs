//! What happened since the start, in numbers.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The live counters; every actor adds to them.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $($(#[$doc])* pub(crate) $name: AtomicU64,)*
        }

        /// What happened in this process since it started.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> Counts {
                Counts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Messages stored in the inbox for the first time.
    stored,
    /// Messages that were known already.
    duplicates,
    /// Repeats of a known id with another payload.
    conflicts,
    /// Messages older than the deduplication window.
    too_old,
    /// Commands that nobody handles.
    unhandled,
    /// Events that nobody handles.
    dropped,
    /// Deliveries that were no message.
    poison,
    /// Rows leased by a claim.
    claimed,
    /// Rows leased as they were stored.
    handed_over,
    /// Handler runs that completed.
    completed,
    /// Handler runs that failed, panicked or timed out.
    failed,
    /// Messages that ended in the dead letters.
    dead,
    /// Messages put off by their handler.
    snoozed,
    /// Runs whose lease was taken over.
    leases_lost,
    /// Runs repeated at once after a conflict with another transaction.
    conflict_retries,
    /// Outbox rows moved to the own inbox.
    delivered,
    /// Outbox rows acknowledged by a transport.
    relayed,
    /// Outbox rows that a transport refused.
    refused,
    /// Restarts of an actor after a panic.
    actor_restarts,
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}
