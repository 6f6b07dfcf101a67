//! Messages of the test service.

use serde::{Deserialize, Serialize};
use uuid::Uuid;
use whizbang::{Command, Event};

/// An event without a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Event)]
#[message(name = "tests.ping")]
pub struct Ping {
    /// What effects are recognised by.
    pub number: i64,
}

/// An event of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Event)]
#[message(name = "tests.stepped", stream = stream)]
pub struct Stepped {
    /// Key of the stream.
    pub stream: String,
    /// Place in the stream, from 0.
    pub number: i64,
}

/// What the scripted handler publishes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Event)]
#[message(name = "tests.noted")]
pub struct Noted {
    /// Number of the message it was caused by.
    pub number: i64,
}

/// An idempotent command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Command)]
#[message(name = "tests.pay", reply = PayReceipt)]
pub struct Pay {
    /// The key.
    pub payment_id: Uuid,
    /// The amount.
    pub cents: i64,
}

/// Its reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PayReceipt {
    /// Number of the payment's row: tells one execution from another.
    pub row: i64,
}

/// An event whose handler publishes many others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Event)]
#[message(name = "tests.burst")]
pub struct Burst {
    /// How many.
    pub count: i64,
}

/// Who something belongs to, for a key inside a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Number of the branch.
    pub branch: i64,
    /// Number of the account at the branch.
    pub number: String,
}

/// A command whose key has two fields, one of them inside another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Command)]
#[message(name = "tests.withdraw", reply = PayReceipt)]
pub struct Withdraw {
    /// First part of the key.
    pub account: Account,
    /// Second part of the key.
    pub request: String,
    /// The amount.
    pub cents: i64,
}
