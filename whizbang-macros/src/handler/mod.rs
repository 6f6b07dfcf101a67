//! `#[handler]` and `#[idempotent_command]`: parse, check, expand.
//!
//! The annotated function always comes out as it went in. What stands beside it is the
//! registration, or the errors and a placeholder for the registration.

mod ask;
mod attr;
mod check;
mod expand;
mod model;
mod signature;

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};

use crate::errors::Errors;

pub(crate) use model::Kind;

/// Expands the attribute.
pub(crate) fn attribute(kind: Kind, list: TokenStream, item: TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let mut function = match model::parse(kind, item.clone()) {
        Ok(function) => function,
        Err(error) => {
            let error = error.into_compile_error();
            return quote!(#error #item);
        }
    };
    let name = function.signature.ident.span();
    let options = attr::read(kind, list, name, &mut errors);
    check::attributes(kind, &mut function, &mut errors);
    let inputs = signature::read(kind, &function, &mut errors);
    let beside = match inputs {
        Some(inputs) if errors.is_empty() => {
            expand::registration(kind, &function, &options, &inputs)
        }
        _ => {
            let placeholder = expand::placeholder(&function, &options);
            let errors = errors.to_compile_errors();
            quote!(#errors #placeholder)
        }
    };
    let function = function.to_token_stream();
    quote!(#function #beside)
}
