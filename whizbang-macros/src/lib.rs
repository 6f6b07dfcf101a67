//! The attributes and derives of `whizbang`; use them, and read about them, there.
//!
//! Four steps, one folder or file each: the lists in attributes are read into options
//! (`options`, `*/attr`), items into a model (`handler/model`), both are checked with all faults
//! collected (`errors`, `handler/{signature,check}`, `message/stream`), and the result is printed
//! (`*/expand`). What is printed are a few calls of `whizbang::__private`, where the traits live
//! that judge the user's types.

// A service must not die of an error of ours; what is left is documented or marked.
#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::string_slice,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

mod duration;
mod errors;
mod field;
mod handler;
mod krate;
mod message;
mod names;
mod options;
mod spans;

use proc_macro::TokenStream;

#[allow(missing_docs)]
#[proc_macro_derive(Event, attributes(message))]
pub fn derive_event(input: TokenStream) -> TokenStream {
    message::derive(message::Kind::Event, input.into()).into()
}

#[allow(missing_docs)]
#[proc_macro_derive(Command, attributes(message))]
pub fn derive_command(input: TokenStream) -> TokenStream {
    message::derive(message::Kind::Command, input.into()).into()
}

#[allow(missing_docs)]
#[proc_macro_attribute]
pub fn handler(list: TokenStream, item: TokenStream) -> TokenStream {
    handler::attribute(handler::Kind::Handler, list.into(), item.into()).into()
}

#[allow(missing_docs)]
#[proc_macro_attribute]
pub fn idempotent_command(list: TokenStream, item: TokenStream) -> TokenStream {
    handler::attribute(handler::Kind::Command, list.into(), item.into()).into()
}

/// Puts what is in its list behind the item.
#[doc(hidden)]
#[proc_macro_attribute]
pub fn beside(list: TokenStream, item: TokenStream) -> TokenStream {
    item.into_iter().chain(list).collect()
}
