//! The registration that stands beside a handler.
//!
//! For `async fn reserve(event: OrderPlaced, cx: &mut HandlerContext<'_>) -> Result<(), E>`:
//!
//! ```text
//! #[doc(hidden)] struct reserve {}
//! impl Registered for reserve {
//!     fn definition() -> Definition {
//!         fn __call<'a>(cx: &'a mut HandlerContext<'_>, inputs: Inputs<'a>) -> HandlerFuture<'a> {
//!             handler_future_must_be_send(
//!                 move || Ok(reserve(<OrderPlaced as HandlerMessage>::take(inputs)?, cx)),
//!                 <Result<(), E> as HandlerReturn>::into_result,
//!             )
//!         }
//!         let call = <HandlerContext<'_> as IsContext>::erase(__call);
//!         <OrderPlaced as HandlerMessage>::define(Site { … }, HandlerOptions::NONE, call, &[])
//!     }
//! }
//! inventory::submit! { Registration(<reserve as Registered>::definition) }
//! ```
//!
//! The function is called by name, so no closure has to be inferred for all lifetimes. Every type
//! is asked for its trait in the form `<Type as Trait>::item` at the user's own tokens, and every
//! such question is the same wherever it is asked twice, so that the compiler answers it once.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::{Attribute, Meta, Path, Type, spanned::Spanned};

use super::{
    attr::{Key, Options},
    model::{Function, Input, Inputs, Kind},
};
use crate::field::{FieldPath, without_raw};

/// A local name that cannot meet one of the user's.
fn local(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

/// Struct, implementation and submission.
pub(crate) fn registration(
    kind: Kind,
    function: &Function,
    options: &Options,
    inputs: &Inputs,
) -> TokenStream {
    let krate = &options.krate;
    let allowed = allowed_lints(&function.attributes);
    let marker = marker(function);
    let name = &function.signature.ident;
    let call = call(kind, function, krate, inputs);
    let definition = definition(kind, function, options, inputs);
    quote! {
        #marker
        #(#allowed)*
        impl #krate::__private::Registered for #name {
            fn definition() -> #krate::__private::Definition {
                #call
                #definition
            }
        }
        #krate::__private::inventory::submit! {
            #krate::__private::Registration(<#name as #krate::__private::Registered>::definition)
        }
    }
}

/// Stands in for the registration when errors were found, so that `.register::<name>()` does not
/// report the same mistake again. Inside an `impl`, where a method was annotated, a struct cannot
/// stand.
pub(crate) fn placeholder(function: &Function, options: &Options) -> TokenStream {
    if function.signature.receiver().is_some() {
        return TokenStream::new();
    }
    let krate = &options.krate;
    let marker = marker(function);
    let name = &function.signature.ident;
    quote! {
        #marker
        impl #krate::__private::Registered for #name {
            fn definition() -> #krate::__private::Definition {
                ::core::unreachable!()
            }
        }
    }
}

/// A braced struct takes the name in the type namespace only: the function stays callable.
fn marker(function: &Function) -> TokenStream {
    let visibility = &function.visibility;
    let mut name = function.signature.ident.clone();
    // With the span of the expansion, lints on the name speak of the function alone.
    name.set_span(Span::call_site().located_at(name.span()));
    quote! {
        #[doc(hidden)]
        #visibility struct #name {}
    }
}

/// The function that the runtime calls.
fn call(kind: Kind, function: &Function, krate: &Path, inputs: &Inputs) -> TokenStream {
    let name = &function.signature.ident;
    let (context, source) = (local("__cx"), local("__inputs"));
    let context_parameter = inputs.context().map(|ty| quote!(#context: &'a mut #ty,));
    let arguments = inputs.all.iter().map(|input| match input {
        Input::Context(_) => context.to_token_stream(),
        Input::Message(ty) => {
            let message = message_trait(kind, krate);
            ask(ty, &message, &quote!(take(#source)?))
        }
        Input::Value(ty) => {
            let argument = quote!(#krate::__private::Argument<'_>);
            ask(ty, &argument, &quote!(extract(#source)?))
        }
    });
    let finish = finish(kind, krate, inputs);
    let run = quote_spanned!(name.span()=> #krate::__private::handler_future_must_be_send);
    quote! {
        fn __whizbang_call<'a>(
            #context_parameter
            #source: #krate::__private::Inputs<'a>,
        ) -> #krate::__private::HandlerFuture<'a> {
            #run(move || ::core::result::Result::Ok(#name(#(#arguments),*)), #finish)
        }
    }
}

/// `<Type as Trait>::item`, every token at the type.
fn ask(ty: &Type, of: &TokenStream, item: &TokenStream) -> TokenStream {
    quote_spanned!(ty.span()=> <#ty as #of>::#item)
}

fn message_trait(kind: Kind, krate: &Path) -> TokenStream {
    match kind {
        Kind::Handler => quote!(#krate::__private::HandlerMessage),
        Kind::Command => quote!(#krate::__private::CommandMessage),
    }
}

/// What reads the handler's return value.
fn finish(kind: Kind, krate: &Path, inputs: &Inputs) -> TokenStream {
    let returns = match (kind, inputs.message()) {
        (Kind::Command, Some(command)) => {
            let reply = ask(command, &message_trait(kind, krate), &quote!(Reply));
            quote!(#krate::__private::CommandReturn<#reply>)
        }
        _ => quote!(#krate::__private::HandlerReturn),
    };
    ask(&inputs.output, &returns, &quote!(into_result))
}

/// The expression that puts the handler's facts together.
fn definition(kind: Kind, function: &Function, options: &Options, inputs: &Inputs) -> TokenStream {
    let krate = &options.krate;
    let Some(message) = inputs.message() else {
        return TokenStream::new();
    };
    let site = site(function, options);
    let handler_options = handler_options(options);
    let call = erased_call(kind, krate, inputs);
    let needs = inputs.values().map(|ty| {
        let argument = quote!(#krate::__private::Argument<'_>);
        ask(ty, &argument, &quote!(REQUIREMENT))
    });
    let command = (kind == Kind::Command).then(|| {
        let scope = optional(options.scope.as_ref());
        let key = key(message, options);
        quote!(, #scope, #key)
    });
    let define = quote!(define(#site, #handler_options, #call, &[#(#needs),*] #command));
    ask(message, &message_trait(kind, krate), &define)
}

fn site(function: &Function, options: &Options) -> TokenStream {
    let krate = &options.krate;
    let ident = &function.signature.ident;
    let plain = without_raw(ident);
    let name = match &options.name {
        Some(name) => name.value(),
        None => plain.clone(),
    };
    let path = format!("::{plain}");
    let (file, line) = (
        quote_spanned!(ident.span()=> ::core::file!()),
        quote_spanned!(ident.span()=> ::core::line!()),
    );
    quote! {
        #krate::__private::Site {
            name: #name,
            path: ::core::concat!(::core::module_path!(), #path),
            file: #file,
            line: #line,
        }
    }
}

fn erased_call(kind: Kind, krate: &Path, inputs: &Inputs) -> TokenStream {
    let Some(context) = inputs.context() else {
        return quote!(#krate::__private::ErasedCall::plain(__whizbang_call));
    };
    let is_context = match kind {
        Kind::Handler => quote!(#krate::__private::IsContext),
        Kind::Command => quote!(#krate::__private::IsCommandContext),
    };
    ask(context, &is_context, &quote!(erase(__whizbang_call)))
}

/// Only what was given; the rest are the defaults of the runtime.
fn handler_options(options: &Options) -> TokenStream {
    let krate = &options.krate;
    let mut given = Vec::new();
    let mut give = |field: &str, value: TokenStream| {
        let field = Ident::new(field, Span::call_site());
        given.push(quote!(#field: #value,));
    };
    if options.lane.is_some() {
        give("lane", optional(options.lane.as_ref()));
    }
    if let Some(attempts) = options.max_attempts {
        give("max_attempts", optional(Some(&attempts)));
    }
    if let Some((shortest, longest)) = options.backoff {
        let (shortest, longest) = (shortest.expand(), longest.expand());
        give("backoff", optional(Some(&quote!((#shortest, #longest)))));
    }
    if let Some(timeout) = options.timeout {
        give("timeout", optional(Some(&timeout.expand())));
    }
    if let Some(limit) = options.concurrency {
        let limit = proc_macro2::Literal::u32_unsuffixed(limit);
        give("concurrency", optional(Some(&limit)));
    }
    if let Some(park) = options.park {
        let action = if park { quote!(Park) } else { quote!(Continue) };
        give("on_dead", quote!(#krate::__private::OnDead::#action));
    }
    let none = quote!(#krate::__private::HandlerOptions::NONE);
    if given.is_empty() {
        return none;
    }
    quote!(#krate::__private::HandlerOptions { #(#given)* ..#none })
}

fn optional(value: Option<&impl ToTokens>) -> TokenStream {
    match value {
        Some(value) => quote!(::core::option::Option::Some(#value)),
        None => quote!(::core::option::Option::None),
    }
}

/// A closure from the inputs to the key of the command.
fn key(message: &Type, options: &Options) -> TokenStream {
    let krate = &options.krate;
    let (source, command) = (local("__inputs"), local("__command"));
    let take = ask(
        message,
        &message_trait(Kind::Command, krate),
        &quote!(take(#source)?),
    );
    let field = |path: &FieldPath| {
        let members = &path.members;
        quote_spanned!(path.span()=> &#command #(.#members)*)
    };
    let key = match &options.key {
        Some(Key::Field(path)) => {
            let field = field(path);
            quote_spanned!(path.span()=> #krate::__private::key_of(#field))
        }
        Some(Key::Fields(paths)) => {
            let parts = paths.iter().map(|path| {
                let field = field(path);
                quote_spanned!(path.span()=> #krate::__private::key_part(#field))
            });
            quote!(#krate::__private::key_of(&(#(#parts,)*)))
        }
        Some(Key::Function(function)) => {
            quote_spanned!(function.span()=> #krate::__private::key_of(&#function(&#command)))
        }
        None => return TokenStream::new(),
    };
    quote! {
        |#source| {
            let #command = #take;
            #key
        }
    }
}

/// What the user allows for the function holds for its types in the registration as well.
fn allowed_lints(attributes: &[Attribute]) -> Vec<TokenStream> {
    let lints = attributes.iter().filter_map(|attribute| {
        let lints = match &attribute.meta {
            Meta::List(list) if list.path.is_ident("allow") || list.path.is_ident("expect") => {
                &list.tokens
            }
            _ => return None,
        };
        Some(quote!(#[allow(#lints)]))
    });
    let deprecated = attributes
        .iter()
        .any(|attribute| attribute.path().is_ident("deprecated"))
        .then(|| quote!(#[allow(deprecated)]));
    lints.chain(deprecated).collect()
}
