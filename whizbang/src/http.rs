//! Idempotent requests over HTTP, for [axum](https://docs.rs/axum) and whatever else takes its
//! extractors (feature `axum`).
//!
//! [`CommandRequest`] is a request whose body is a command. Its key is a member of the body, or
//! comes in the header `Idempotency-Key` as in the IETF draft "The Idempotency-Key HTTP Header
//! Field". [`Problem`] is the answer when it cannot be done:
//!
//! | what happened | status | `code` |
//! |---|---|---|
//! | no key where one is required, or one that cannot be read | 400 | `idempotency_key_missing`, `idempotency_key_invalid` |
//! | the body is no JSON, or does not fit the command | 400, 422 | `malformed`, `invalid` |
//! | the same request is being executed and did not end in time | 409 | `in_progress` |
//! | a unique constraint says that it was done by other means | 409 | `already_done` |
//! | the body is larger than a message may be | 413 | `too_large` |
//! | the body is not declared as JSON | 415 | `not_json` |
//! | the key was used for another request | 422 | `idempotency_key_reused` |
//! | the handler refused it for good (`store_error`) | 422 | `refused` |
//! | the handler failed, or the service is set up wrongly | 500 | `failed` |
//! | the database is away, or it took too long | 503 | `unavailable` |
//!
//! After 409 `in_progress` and after 503 it is safe to send the same request again; `Retry-After`
//! says when. Answers 500 and 503 say nothing about the cause, which goes to the log.

mod key;
mod problem;
mod request;

pub use key::{IdempotencyKey, InvalidKey};
pub use problem::Problem;
pub use request::CommandRequest;
