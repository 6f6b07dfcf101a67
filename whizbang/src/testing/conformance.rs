//! The checks that every store must pass: the contract of [`Store`], method by method and promise
//! by promise.
//!
//! A store's tests implement [`Harness`] for it and run all [`checks`]; each check gets an empty
//! store of its own.

use std::{future::Future, time::Duration};

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;

use crate::{BoxError, store::Store};

mod bench;
mod claims;
mod commands;
mod dead_letters;
mod hand_over;
mod in_memory;
mod inbox;
mod leases;
mod outbox;
mod reports;
mod service;
mod streams;
mod transactions;
mod window;

pub use in_memory::InMemory;

/// What the checks need besides the store itself.
pub trait Harness: Send + Sync + 'static {
    /// The store under test.
    type Store: Store;

    /// An empty store.
    fn fresh(&self) -> impl Future<Output = Result<Self::Store, BoxError>> + Send;

    /// The database's clock.
    fn now(
        &self,
        store: &Self::Store,
    ) -> impl Future<Output = Result<DateTime<Utc>, BoxError>> + Send;

    /// Lets database time pass, or moves the times of all rows back by as much.
    fn pass(
        &self,
        store: &Self::Store,
        time: Duration,
    ) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Writes a row of the user's own, as a handler would.
    fn write(
        &self,
        connection: &mut <Self::Store as Store>::Connection,
        row: &str,
    ) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// The user's rows that are committed, in any order.
    fn written(
        &self,
        store: &Self::Store,
    ) -> impl Future<Output = Result<Vec<String>, BoxError>> + Send;

    /// Adds a row whose unique constraint `once_pkey` refuses a second one like it.
    fn write_once(
        &self,
        connection: &mut <Self::Store as Store>::Connection,
        row: &str,
    ) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Runs a statement that fails; its result.
    fn spoil(
        &self,
        connection: &mut <Self::Store as Store>::Connection,
    ) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Commits behind the store's back, as a `COMMIT` in a handler does.
    fn stray_commit(
        &self,
        connection: &mut <Self::Store as Store>::Connection,
    ) -> impl Future<Output = Result<(), BoxError>> + Send;
}

/// How a store breaks its contract.
#[derive(Debug)]
pub struct Violation(String);

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Violation {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }

    /// The harness itself failed.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "it is what `map_err` hands over"
    )]
    pub(crate) fn of_harness(error: BoxError) -> Self {
        Self(format!(
            "the harness failed: {}",
            crate::error_chain(&*error)
        ))
    }
}

impl<E: std::error::Error + 'static> From<E> for Violation {
    fn from(error: E) -> Self {
        Self(format!("a call failed: {}", crate::error_chain(&error)))
    }
}

/// What a check found.
pub type Verdict = Result<(), Violation>;

/// One check.
pub struct Check<H: Harness> {
    /// What must hold.
    pub name: &'static str,
    /// The promise it belongs to, such as `P1`.
    pub promise: &'static str,
    run: for<'h> fn(&'h H) -> BoxFuture<'h, Verdict>,
}

impl<H: Harness> Check<H> {
    /// Runs it on an empty store.
    ///
    /// # Errors
    /// How the store breaks its contract.
    pub async fn run(&self, harness: &H) -> Verdict {
        (self.run)(harness).await
    }
}

impl<H: Harness> std::fmt::Debug for Check<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.promise, self.name)
    }
}

/// All checks.
pub fn checks<H: Harness>() -> Vec<Check<H>> {
    let topics = [
        inbox::checks(),
        window::checks(),
        hand_over::checks(),
        claims::checks(),
        streams::checks(),
        leases::checks(),
        transactions::checks(),
        reports::checks(),
        commands::checks(),
        outbox::checks(),
        dead_letters::checks(),
        service::checks(),
    ];
    topics.into_iter().flatten().collect()
}

/// Lists checks by the names of their functions.
macro_rules! topic {
    ($($promise:ident: $name:ident),* $(,)?) => {
        pub(super) fn checks<H: $crate::testing::conformance::Harness>()
            -> Vec<$crate::testing::conformance::Check<H>> {
            vec![$($crate::testing::conformance::Check {
                name: stringify!($name),
                promise: stringify!($promise),
                run: |harness| Box::pin($name(harness)),
            }),*]
        }
    };
}

/// Ends the check unless the condition holds.
macro_rules! must {
    ($condition:expr, $($what:tt)+) => {
        if !$condition {
            return Err($crate::testing::conformance::Violation::new(format!(
                "{} ({}, line {})", format_args!($($what)+), file!(), line!()
            )));
        }
    };
}

/// Ends the check unless both are equal.
macro_rules! must_eq {
    ($found:expr, $wanted:expr, $($what:tt)+) => {
        match (&$found, &$wanted) {
            (found, wanted) => must!(
                found == wanted,
                "{}: found {found:?}, wanted {wanted:?}", format_args!($($what)+)
            ),
        }
    };
}

use {must, must_eq, topic};

#[cfg(test)]
mod tests;
