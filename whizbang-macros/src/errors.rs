//! Errors are collected, so that one compile reports every fault of an item.

use proc_macro2::{Span, TokenStream};
use quote::ToTokens;
use syn::Error;

/// The faults found so far.
#[derive(Default)]
pub(crate) struct Errors {
    found: Option<Error>,
}

impl Errors {
    /// A fault at the given tokens.
    pub(crate) fn at(&mut self, tokens: impl ToTokens, message: impl std::fmt::Display) {
        self.add(Error::new_spanned(tokens, message));
    }

    /// A fault at the given place.
    pub(crate) fn at_span(&mut self, span: Span, message: impl std::fmt::Display) {
        self.add(Error::new(span, message));
    }

    /// A fault that a parser found.
    pub(crate) fn add(&mut self, error: Error) {
        match &mut self.found {
            Some(found) => found.combine(error),
            None => self.found = Some(error),
        }
    }

    /// Keeps the value, or the fault.
    pub(crate) fn ok<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        result.map_err(|error| self.add(error)).ok()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.found.is_none()
    }

    /// All faults as `compile_error!` items; nothing if there are none.
    pub(crate) fn to_compile_errors(&self) -> TokenStream {
        self.found
            .as_ref()
            .map(Error::to_compile_error)
            .unwrap_or_default()
    }

    /// The texts, for tests of parsers.
    #[cfg(test)]
    pub(crate) fn texts(&self) -> Vec<String> {
        let errors = self.found.iter().flatten();
        errors.map(|error| error.to_string()).collect()
    }
}
