//! A store in memory, faults to order, and the checks that every store must pass.
//!
//! [`MemoryStore`] keeps the whole contract of [`Store`](crate::store::Store) without a database:
//! transactions, row locks, leases, the deduplication window, dead letters. Its clock is tokio's,
//! so a test under paused time runs minutes of service in milliseconds, and each instance of a
//! service gets a handle of its own whose calls can be lost, delayed, stalled or ended for ever.
//!
//! [`conformance`] holds the checks of the contract, for the stores in this project and for any
//! other.

mod claim;
mod client;
mod clock;
mod commands;
pub mod conformance;
mod contract;
mod dead_letters;
mod faults;
mod flaw;
mod inspect;
mod intake;
mod leases;
mod locks;
mod maintenance;
mod memory;
mod outbox;
mod service;
mod session;
mod streams;
mod tables;
mod writes;

pub use faults::{Fault, Faults, NoFaults, Operation};
pub use flaw::Flaw;
pub use inspect::{Effects, Load, Stored};
pub use memory::MemoryStore;
pub use session::{MemoryConnection, MemorySession, MemoryTransaction, UniqueViolation};
