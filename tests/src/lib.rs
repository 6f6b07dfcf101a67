//! What the integration tests share: a database each, a service with scripted handlers, and
//! waiting for conditions.

mod fault_handlers;
mod flaky_transport;
mod messages;
mod proxy;
mod service;
mod world;

pub use fault_handlers::{emit_many, narrow, outside_after, withdraw};
pub use flaky_transport::{Faults, FlakyTransport};
pub use messages::{Account, Burst, Noted, Pay, PayReceipt, Ping, Stepped, Withdraw};
pub use proxy::Proxy;
pub use service::{
    Script, Step, note_in_lane, note_plain, note_stepped, note_twice, pay, scripted,
};
pub use world::{World, wait_until};
