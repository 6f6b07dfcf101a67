//! The promises, each with tests that fail when it is broken.

#![expect(
    clippy::disallowed_methods,
    reason = "old messages are made by the clock of a publisher"
)]

mod promises {
    mod answers;
    mod commands;
    mod costs;
    mod execute_in;
    mod inbox;
    mod lifecycle;
    mod order;
    mod outbox;
    mod retries;
    mod seed;
    mod steady_state;
    mod transaction;
}
