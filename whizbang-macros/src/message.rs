//! The derives `Event` and `Command`.

mod attr;
mod expand;
mod stream;

use proc_macro2::{Ident, Span, TokenStream};
use syn::{Attribute, Data, DeriveInput, Fields};

use crate::errors::Errors;

/// Which of the two is derived.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Event,
    Command,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Event => "Event",
            Self::Command => "Command",
        }
    }

    /// The trait from which `Event` or `Command` follows.
    fn declared(self) -> Ident {
        let name = match self {
            Self::Event => "DeclaredEvent",
            Self::Command => "HasReply",
        };
        Ident::new(name, Span::call_site())
    }
}

/// The implementations, or what keeps them from being written.
pub(crate) fn derive(kind: Kind, input: TokenStream) -> TokenStream {
    let input = match syn::parse2::<DeriveInput>(input) {
        Ok(input) => input,
        Err(error) => return error.into_compile_error(),
    };
    let mut errors = Errors::default();
    check_shape(&input, &mut errors);
    check_members(&input.data, &mut errors);
    let options = attr::read(kind, &input, &mut errors);
    let stream = options
        .stream
        .as_ref()
        .and_then(|path| stream::expand(path, &input, &options.krate, &mut errors));
    if errors.is_empty() {
        expand::expand(kind, &input, &options, stream)
    } else if let Data::Union(_) = input.data {
        // Nothing could stand in for it, since it can be neither written nor read.
        errors.to_compile_errors()
    } else {
        // Placeholders keep one mistake from showing up again at every use of the type.
        let placeholder = expand::placeholder(kind, &input, &options);
        let errors = errors.to_compile_errors();
        quote::quote!(#errors #placeholder)
    }
}

fn check_shape(input: &DeriveInput, errors: &mut Errors) {
    if !input.generics.params.is_empty() {
        errors.at(
            &input.generics,
            "a message type cannot be generic: one wire name stands for one type; declare a type of its own for each payload",
        );
    }
    if let Data::Union(data) = &input.data {
        errors.at(
            data.union_token,
            "a message is a struct or an enum; a union has no JSON form",
        );
    }
}

/// Refuses the attribute where it would say nothing.
fn check_members(data: &Data, errors: &mut Errors) {
    let mut refuse = |attributes: &[Attribute]| {
        for attribute in attributes.iter().filter(|a| a.path().is_ident("message")) {
            let text = "`#[message(…)]` goes on the type, not on what is in it: write `#[message(name = \"…\", stream = order_id)]` above the type";
            errors.at(attribute, text);
        }
    };
    let mut refuse_in = |fields: &Fields| fields.iter().for_each(|field| refuse(&field.attrs));
    match data {
        Data::Struct(data) => refuse_in(&data.fields),
        Data::Enum(data) => {
            for variant in &data.variants {
                refuse_in(&variant.fields);
            }
            for variant in &data.variants {
                refuse(&variant.attrs);
            }
        }
        // Refused as a whole.
        Data::Union(_) => {}
    }
}
