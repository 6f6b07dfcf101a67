//! Where generated code says it stands: the compiler points errors there.
//!
//! An expression whose first and last token come from different expansions is reported at the
//! whole attribute, so both are moved to the same kind of place.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::ToTokens;

/// The spans of the first and the last token.
pub(crate) fn ends(tokens: impl ToTokens) -> (Span, Span) {
    let mut tokens = tokens.to_token_stream().into_iter();
    let Some(first) = tokens.next() else {
        return (Span::call_site(), Span::call_site());
    };
    let last = tokens.last().unwrap_or_else(|| first.clone());
    (start(&first), end(&last))
}

fn start(token: &TokenTree) -> Span {
    match token {
        TokenTree::Group(group) => group.span_open(),
        other => other.span(),
    }
}

fn end(token: &TokenTree) -> Span {
    match token {
        TokenTree::Group(group) => group.span_close(),
        other => other.span(),
    }
}

/// The tokens, all standing at `at`.
pub(crate) fn moved(tokens: TokenStream, at: Span) -> TokenStream {
    let tokens = tokens.into_iter().map(|mut token| {
        token.set_span(at);
        token
    });
    tokens.collect()
}
