//! The running service: one file for each actor, started and stopped in one place.
//!
//! ```text
//! transport → consumer ─┐                        ┌→ relay → transport
//!                       ▼                        │
//!   outbox → relay → inbox → worker → executor → outbox
//!                              ▲          │
//!                        renewer, heart   └→ completer
//! ```

mod app;
mod breaker;
mod builder;
mod capacity;
mod completer;
mod consumer;
mod counters;
mod executor;
mod heart;
mod held;
mod maintainer;
mod relay;
mod renewer;
mod run;
mod shared;
mod stop;
mod worker;

pub use app::{App, Health, ShutdownError};
pub use builder::Builder;
pub use counters::Counts;
