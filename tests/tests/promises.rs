//! The promises, each with tests that fail when it is broken.

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
    mod transaction;
}
