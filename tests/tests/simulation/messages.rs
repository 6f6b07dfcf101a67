//! What the simulated services say to each other.

use serde::{Deserialize, Serialize};
use whizbang::{Command, Event};

/// Happens in a stream; two handlers listen, each in its own lane.
#[derive(Debug, Clone, Serialize, Deserialize, Event)]
#[message(name = "sim.stepped", stream = stream)]
pub(crate) struct Stepped {
    pub(crate) stream: String,
    pub(crate) number: u64,
}

/// Published for each step by its handler, in the same stream.
#[derive(Debug, Clone, Serialize, Deserialize, Event)]
#[message(name = "sim.followed", stream = stream)]
pub(crate) struct Followed {
    pub(crate) stream: String,
    pub(crate) number: u64,
}

/// Shares a lane with [`Closed`].
#[derive(Debug, Clone, Serialize, Deserialize, Event)]
#[message(name = "sim.opened", stream = stream)]
pub(crate) struct Opened {
    pub(crate) stream: String,
    pub(crate) number: u64,
}

/// Shares a lane with [`Opened`].
#[derive(Debug, Clone, Serialize, Deserialize, Event)]
#[message(name = "sim.closed", stream = stream)]
pub(crate) struct Closed {
    pub(crate) stream: String,
    pub(crate) number: u64,
}

/// Belongs to no stream.
#[derive(Debug, Clone, Serialize, Deserialize, Event)]
#[message(name = "sim.loose")]
pub(crate) struct Loose {
    pub(crate) number: u64,
}

/// Moves money between accounts.
#[derive(Debug, Clone, Serialize, Deserialize, Event)]
#[message(name = "sim.moved")]
pub(crate) struct Moved {
    pub(crate) number: u64,
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) cents: i64,
}

/// Takes effect once for each key.
#[derive(Debug, Clone, Serialize, Deserialize, Command)]
#[message(name = "sim.pay", reply = Receipt)]
pub(crate) struct Pay {
    pub(crate) key: String,
    pub(crate) cents: i64,
}

/// Tells one execution from another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Receipt {
    pub(crate) execution: u64,
}
