//! The functions of the database, called as the store calls them, with interleavings staged on
//! several connections. Nothing here sleeps for luck: a test waits until the database says that a
//! session is blocked, or until a condition holds.

#![expect(
    clippy::disallowed_methods,
    reason = "old messages are made by the clock of a publisher"
)]

#[path = "sql/calls.rs"]
mod calls;
#[path = "sql/support.rs"]
mod support;

#[path = "sql/claiming.rs"]
mod claiming;
#[path = "sql/commands.rs"]
mod commands;
#[path = "sql/deduplication.rs"]
mod deduplication;
#[path = "sql/failures.rs"]
mod failures;
#[path = "sql/fan_out.rs"]
mod fan_out;
#[path = "sql/gates.rs"]
mod gates;
#[path = "sql/housekeeping.rs"]
mod housekeeping;
#[path = "sql/letters.rs"]
mod letters;
#[path = "sql/local.rs"]
mod local;
#[path = "sql/outbox.rs"]
mod outbox;
#[path = "sql/plans.rs"]
mod plans;
#[path = "sql/random.rs"]
mod random;
#[path = "sql/schema.rs"]
mod schema;
#[path = "sql/time.rs"]
mod time;
