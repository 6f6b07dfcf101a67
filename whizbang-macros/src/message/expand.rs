//! The implementations of `Message` and of `Event` or `Command`.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote};
use syn::{DeriveInput, parse_quote};

use super::{Kind, attr::Options};

/// The real thing.
pub(crate) fn expand(
    kind: Kind,
    input: &DeriveInput,
    options: &Options,
    stream: Option<TokenStream>,
) -> TokenStream {
    let Options { krate, aliases, .. } = options;
    let name = options.name_or_placeholder();
    let ident = &input.ident;
    let kind_name = Ident::new(kind.name(), Span::call_site());
    let declared = kind.declared();
    let aliases = (!aliases.is_empty())
        .then(|| quote!(const ALIASES: &'static [&'static str] = &[#(#aliases),*];));
    let reply = (kind == Kind::Command).then(|| reply(options));
    quote! {
        #[automatically_derived]
        impl #krate::__private::Message for #ident {
            const NAME: &'static str = #name;
            #aliases
            const KIND: #krate::__private::MessageKind = #krate::__private::MessageKind::#kind_name;
            #stream
        }
        #[automatically_derived]
        impl #krate::__private::#declared for #ident {
            #reply
        }
    }
}

fn reply(options: &Options) -> TokenStream {
    let reply = match &options.reply {
        Some(reply) => reply.to_token_stream(),
        None => quote!(()),
    };
    quote!(type Reply = #reply;)
}

/// Implementations for a type with a reported fault, for all instances if it is generic.
pub(crate) fn placeholder(kind: Kind, input: &DeriveInput, options: &Options) -> TokenStream {
    let krate = &options.krate;
    let ident = &input.ident;
    let name = options.name_or_placeholder();
    let kind_name = Ident::new(kind.name(), Span::call_site());
    let declared = kind.declared();
    let mut generics = input.generics.clone();
    if !generics.params.is_empty() {
        let bound = parse_quote!(Self: #krate::__private::Wire);
        generics.make_where_clause().predicates.push(bound);
    }
    let (parameters, arguments, bounds) = generics.split_for_impl();
    let reply = (kind == Kind::Command).then(|| reply(options));
    quote! {
        #[automatically_derived]
        impl #parameters #krate::__private::Message for #ident #arguments #bounds {
            const NAME: &'static str = #name;
            const KIND: #krate::__private::MessageKind = #krate::__private::MessageKind::#kind_name;
        }
        #[automatically_derived]
        impl #parameters #krate::__private::#declared for #ident #arguments #bounds {
            #reply
        }
    }
}
