//! What the integration tests share: a database each, a service with scripted handlers, and
//! waiting for conditions.

mod messages;
mod service;
mod world;

pub use messages::{Noted, Pay, PayReceipt, Ping, Stepped};
pub use service::{
    Script, Step, note_in_lane, note_plain, note_stepped, note_twice, pay, scripted,
};
pub use world::{World, wait_until};
