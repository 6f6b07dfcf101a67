//! What the two services say to each other.
//!
//! ```text
//! Transfer ─▶ bank.transfer ─▶ Debited ─▶ bank.statement
//!                 │               └─▶ clearing.credit ─▶ Credited ─▶ clearing.tally
//!                 └─▶ Noticed ─▶ bank.mail, clearing.notice   └─▶ bank.settle
//! ```

use serde::{Deserialize, Serialize};
use uuid::Uuid;
use whizbang::{Command, Event};

/// How many accounts there are, numbered from 0; each is a stream.
pub(crate) const ACCOUNTS: i64 = 16;

/// Moves money; takes effect once for each id.
#[derive(Debug, Clone, Serialize, Deserialize, Command)]
#[message(name = "chaos.transfer", reply = Receipt)]
pub(crate) struct Transfer {
    pub(crate) id: Uuid,
    /// What effects are recognised by.
    pub(crate) number: i64,
    pub(crate) from: i64,
    pub(crate) to: i64,
    pub(crate) cents: i64,
    pub(crate) trouble: Option<Trouble>,
}

/// What a transfer leaves in the answer: tells one execution from another.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Receipt {
    pub(crate) effect: i64,
}

/// The money has left an account.
#[derive(Debug, Clone, Serialize, Deserialize, Event)]
#[message(name = "chaos.debited", stream = from)]
pub(crate) struct Debited {
    pub(crate) from: i64,
    /// Place in the stream, from 1.
    pub(crate) place: i64,
    pub(crate) transfer: Transfer,
}

/// The money has reached an account.
#[derive(Debug, Clone, Serialize, Deserialize, Event)]
#[message(name = "chaos.credited", stream = to)]
pub(crate) struct Credited {
    pub(crate) to: i64,
    /// Place in the stream, from 1.
    pub(crate) place: i64,
    pub(crate) transfer: Transfer,
}

/// Something happened, in no order.
#[derive(Debug, Clone, Serialize, Deserialize, Event)]
#[message(name = "chaos.noticed")]
pub(crate) struct Noticed {
    pub(crate) transfer: Transfer,
}

/// Kills every process that handles it.
#[derive(Debug, Clone, Serialize, Deserialize, Event)]
#[message(name = "chaos.bomb")]
pub(crate) struct Bomb {
    pub(crate) number: i64,
}

/// What one handler does with one transfer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Trouble {
    pub(crate) handler: String,
    pub(crate) mishap: Mishap,
}

/// A way to go wrong. The first four pass after a few times; the others never do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mishap {
    Fail,
    Panic,
    Hang,
    Abort,
    FailAlways,
    Permanent,
}

impl Mishap {
    /// Whether the message ends in the dead letters.
    pub(crate) fn is_deadly(self) -> bool {
        matches!(self, Self::FailAlways | Self::Permanent)
    }
}

impl Transfer {
    /// Whether this handler can never deal with it.
    pub(crate) fn kills(&self, handler: &str) -> bool {
        let trouble = self.trouble.as_ref();
        trouble.is_some_and(|trouble| trouble.handler == handler && trouble.mishap.is_deadly())
    }
}
