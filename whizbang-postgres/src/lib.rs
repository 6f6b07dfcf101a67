//! The PostgreSQL store of [`whizbang`]: inbox, outbox, idempotent commands and dead letters as
//! tables and functions in your own database, in your own transactions.
//!
//! Start a service with [`Whizbang::builder`]; create the tables with [`migrate`].

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

mod calls;
mod contract;
mod control;
mod dead_letters;
mod error;
mod inbox;
mod migrate;
mod outbox;
mod pooler;
mod rows;
mod service;
mod session;
mod store;
mod watermark;

#[cfg(feature = "embedded")]
pub mod embedded;
#[cfg(doctest)]
mod guide;

pub use migrate::{MigrateError, SCHEMA_VERSION, migrate, migrate_schema, migration_script};
pub use service::StatusLine;
pub use store::{PgStore, Whizbang};

/// The transaction a handler runs in: see [`whizbang::Context`].
pub type HandlerContext<'c> = whizbang::Context<'c, PgStore>;

/// A context whose transaction opens when the handler asks for it: see [`whizbang::LazyContext`].
pub type LazyContext<'c> = whizbang::LazyContext<'c, PgStore>;

/// Publishes, sends and executes on PostgreSQL: see [`whizbang::Dispatcher`].
pub type Dispatcher = whizbang::Dispatcher<PgStore>;

/// A running service on PostgreSQL: see [`whizbang::App`].
pub type App = whizbang::App<PgStore>;

/// Collects what a service is made of: see [`whizbang::Builder`].
pub type Builder = whizbang::Builder<PgStore>;
