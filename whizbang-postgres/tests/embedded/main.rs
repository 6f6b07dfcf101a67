//! The private PostgreSQL server: what it promises however its users end.

#![cfg(feature = "embedded")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "this is all test code"
)]

mod actors;
mod databases;
mod endings;
mod failures;
mod life;
mod places;
mod sharing;
mod support;
mod templates;
