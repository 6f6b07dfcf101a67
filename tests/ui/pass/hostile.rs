//! Types, modules and macros of the user's that are named like the ones generated code needs, in
//! a module without a prelude.

#![no_implicit_prelude]
#![expect(
    dead_code,
    non_camel_case_types,
    unused_imports,
    unused_macros,
    reason = "hostile names that generated code must not meet"
)]

use ::whizbang_postgres::HandlerContext;

pub(crate) mod core {}
pub(crate) mod std {}
pub(crate) mod serde {}
pub(crate) mod whizbang {}
pub(crate) mod whizbang_postgres {}

macro_rules! vec {
    () => {
        compile_error!("the user's own")
    };
}
macro_rules! concat {
    () => {
        vec![]
    };
}
pub(crate) use concat as line;

pub(crate) struct Result;
pub(crate) struct Option;
pub(crate) struct Some;
pub(crate) struct None;
pub(crate) struct Ok;
pub(crate) struct Err;
pub(crate) struct Box;
pub(crate) struct String;
pub(crate) struct Vec;
pub(crate) struct Context;
pub(crate) struct Message;
pub(crate) struct Registered;
pub(crate) struct Inputs;
pub(crate) struct a;
pub(crate) trait Default {}
pub(crate) trait Send {}
pub(crate) trait Future {}
pub(crate) trait FnOnce {}

#[derive(::whizbang::Event, ::serde::Serialize, ::serde::Deserialize)]
#[message(name = "hostile.event", stream = id)]
pub(crate) struct Event {
    id: u8,
}

#[derive(::whizbang::Command, ::serde::Serialize, ::serde::Deserialize)]
#[message(name = "hostile.command", alias = "hostile.old", reply = State)]
pub(crate) struct Command {
    id: u8,
    other: u8,
}

#[derive(::core::clone::Clone, ::serde::Serialize, ::serde::Deserialize)]
pub(crate) struct State;

#[::whizbang::handler(
    lane = "hostile",
    max_attempts = 5,
    backoff = "1s..5m",
    timeout = "30s",
    concurrency = 2,
    on_dead = "park"
)]
async fn handle(
    event: Event,
    state: ::whizbang::State<State>,
    meta: &::whizbang::Metadata,
) -> ::core::result::Result<(), ::std::string::String> {
    let _ = (event, state, meta);
    ::core::result::Result::Ok(())
}

#[::whizbang::idempotent_command(key = (id, other))]
async fn execute(
    command: Command,
    cx: &mut HandlerContext<'_>,
) -> ::core::result::Result<State, ::std::string::String> {
    let _ = (command, cx);
    ::core::result::Result::Ok(State)
}

#[::whizbang::idempotent_command(key = id, scope = "hostile")]
async fn take(
    command: Command,
    cx: &mut HandlerContext<'_>,
) -> ::core::result::Result<State, ::std::string::String> {
    let _ = (command, cx);
    ::core::result::Result::Ok(State)
}
