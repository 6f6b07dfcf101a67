//! The registration that stands beside a handler.
//!
//! For `async fn reserve(event: OrderPlaced, cx: &mut HandlerContext<'_>) -> Result<(), E>`:
//!
//! ```text
//! #[doc(hidden)] mod __whizbang_reserve { #[doc(hidden)] pub struct reserve {} }
//! use __whizbang_reserve::*;
//! impl Registered for __whizbang_reserve::reserve {
//!     fn definition() -> Definition {
//!         use ::whizbang::__private as __wb;
//!         fn call<'a>(cx: &'a mut HandlerContext<'_>, inputs: Inputs<'a>) -> HandlerFuture<'a> {
//!             let handler = reserve;
//!             handler_future_must_be_send(
//!                 move || Ok(handler(<OrderPlaced as HandlerMessage>::take(inputs)?, cx)),
//!                 <Result<(), E> as HandlerReturn>::into_result,
//!             )
//!         }
//!         let call = <HandlerContext<'_> as IsContext>::erase(call);
//!         <OrderPlaced as HandlerMessage>::define(Site::here(…), HandlerOptions::NONE, call, &[])
//!     }
//! }
//! inventory::submit! { Registration::of::<__whizbang_reserve::reserve>() }
//! ```
//!
//! The function is called by name, so no closure has to be inferred for all lifetimes. How the
//! questions about the user's types are asked is in [`super::ask`].

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::{Attribute, Meta};

use super::{
    ask::{Asker, alias},
    attr::{Key, Options},
    model::{Function, Input, Inputs, Kind},
};
use crate::field::{FieldPath, without_raw};

/// Marker, implementation and submission.
pub(crate) fn registration(
    kind: Kind,
    function: &Function,
    options: &Options,
    inputs: &Inputs,
) -> TokenStream {
    let krate = &options.krate;
    let allowed = allowed_lints(&function.attributes);
    let Marker {
        module,
        import,
        path,
    } = marker(function);
    let asker = Asker::new(kind, &inputs.message);
    let call = call(function, options, &asker, inputs);
    let definition = definition(function, options, &asker, inputs);
    let alias = alias(Span::call_site());
    let beside = quote! {
        #module
        #import
        #krate::__private::inventory::submit! {
            #krate::__private::Registration::of::<#path>()
        }
    };
    // Inside an `impl`, which nothing tells us that we are in, an implementation is refused, at the
    // name, and its attributes are never run: one error there in place of four.
    let at = Span::call_site().located_at(function.signature.ident.span());
    let implementation = quote_spanned! {at=>
        impl #krate::__private::Registered for #path {
            fn definition() -> #krate::__private::Definition {
                use #krate::__private as #alias;
                #call
                #definition
            }
        }
    };
    quote!(#[#krate::__private::beside { #beside }] #(#allowed)* #implementation)
}

/// Stands in for the registration when errors were found, so that `.register::<name>()` does not
/// report the same mistake again. Inside an `impl`, where a method was annotated, a module cannot
/// stand.
pub(crate) fn placeholder(function: &Function, options: &Options) -> TokenStream {
    if function.signature.receiver().is_some() {
        return TokenStream::new();
    }
    let krate = &options.krate;
    let Marker {
        module,
        import,
        path,
    } = marker(function);
    quote! {
        #module
        #import
        impl #krate::__private::Registered for #path {
            fn definition() -> #krate::__private::Definition {
                ::core::unreachable!()
            }
        }
    }
}

/// The type that stands for the function in `.register::<name>()`.
struct Marker {
    module: TokenStream,
    import: TokenStream,
    path: TokenStream,
}

/// A braced struct takes the name in the type namespace only, so the function stays callable. It
/// is imported by `*`, which gives way to a module or a type of the user's of the same name.
fn marker(function: &Function) -> Marker {
    let visibility = &function.visibility;
    let mut name = function.signature.ident.clone();
    // With the span of the expansion, lints on the name speak of the function alone.
    let at = Span::call_site().located_at(name.span());
    let module = Ident::new(&format!("__whizbang_{}", without_raw(&name)), at);
    name.set_span(at);
    Marker {
        module: quote_spanned!(at=> #[doc(hidden)] mod #module { #[doc(hidden)] pub struct #name {} }),
        import: quote!(#visibility use #module::*;),
        path: quote_spanned!(at=> #module::#name),
    }
}

/// The function that the runtime calls.
fn call(function: &Function, options: &Options, asker: &Asker<'_>, inputs: &Inputs) -> TokenStream {
    let name = &function.signature.ident;
    // Every token of the call stands at the name, where a future that is not `Send` is reported.
    let at = Span::call_site().located_at(name.span());
    let local = |name| Ident::new(name, at);
    let (handler, context) = (local("__handler"), local("__cx"));
    let source = local("__inputs");
    let context_parameter = inputs.context().map(|ty| quote!(#context: &'a mut #ty,));
    let arguments = inputs.all.iter().map(|input| match input {
        Input::Context(_) => context.to_token_stream(),
        Input::Message(_) => asker.message("take", Some(quote!(#source)), true),
        Input::Value(ty) => asker.argument(ty, "extract", Some(quote!(#source)), true),
    });
    let finish = asker.output(&inputs.output, options.store_error.as_ref());
    let private = alias(at);
    let run = quote_spanned! {at=>
        #private::handler_future_must_be_send(
            move || #private::Ok(#handler(#(#arguments),*)),
            #finish,
        )
    };
    quote! {
        fn __call<'a>(
            #context_parameter
            #source: #private::Inputs<'a>,
        ) -> #private::HandlerFuture<'a> {
            // A function that is used as a value has to be async, so Clippy does not ask why it is.
            let #handler = #name;
            #run
        }
    }
}

/// The expression that puts the handler's facts together.
fn definition(
    function: &Function,
    options: &Options,
    asker: &Asker<'_>,
    inputs: &Inputs,
) -> TokenStream {
    let site = site(function, options);
    let handler_options = handler_options(options);
    let call = match inputs.context() {
        Some(context) => asker.context(context, "__call"),
        None => {
            let private = alias(Span::call_site());
            quote!(#private::ErasedCall::plain(__call))
        }
    };
    let needs = inputs
        .values()
        .map(|ty| asker.argument(ty, "REQUIREMENT", None, false));
    let common = quote!(#site, #handler_options, #call, &[#(#needs),*]);
    match &options.key {
        Some(key) => {
            let command = command_options(options, asker, inputs);
            let key = key_reader(key, function, asker);
            asker.message(
                "define_command",
                Some(quote!(#common, #command, #key)),
                false,
            )
        }
        None => asker.message("define", Some(common), false),
    }
}

/// What the attribute says about an idempotent command besides its key.
fn command_options(options: &Options, asker: &Asker<'_>, inputs: &Inputs) -> TokenStream {
    let private = alias(Span::call_site());
    let scope = optional(options.scope.as_ref());
    let version = match &options.version {
        Some(version) => version.to_token_stream(),
        // The package that the handler is in; cargo sets it.
        None => quote! {
            match ::core::option_env!("CARGO_PKG_VERSION") {
                #private::Some(__version) => __version,
                #private::None => "",
            }
        },
    };
    let stored_error = options
        .store_error
        .as_ref()
        .map(|_| asker.stored_error(&inputs.output));
    let stored_error = optional(stored_error.as_ref());
    quote! {
        #private::CommandOptions {
            scope: #scope,
            version: #version,
            stored_error: #stored_error,
        }
    }
}

/// Called with the span of the name, which is where it finds itself.
fn site(function: &Function, options: &Options) -> TokenStream {
    let ident = &function.signature.ident;
    let plain = without_raw(ident);
    let name = match &options.name {
        Some(name) => name.value(),
        None => plain.clone(),
    };
    let path = format!("::{plain}");
    let path = quote!(::core::concat!(::core::module_path!(), #path));
    let private = alias(ident.span());
    quote_spanned!(ident.span()=> #private::Site::here(#name, #path))
}

/// How many fields `HandlerOptions` has.
const ALL_OPTIONS: usize = 7;

/// Only what was given; the rest are the defaults of the runtime.
fn handler_options(options: &Options) -> TokenStream {
    let private = alias(Span::call_site());
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
        give("on_dead", quote!(#private::OnDead::#action));
    }
    if !options.already_done.is_empty() {
        let constraints = &options.already_done;
        give("already_done", quote!(&[#(#constraints),*]));
    }
    let none = quote!(#private::HandlerOptions::NONE);
    match given.len() {
        0 => none,
        // Clippy calls a base superfluous when nothing is left for it to fill in.
        ALL_OPTIONS => quote!(#private::HandlerOptions { #(#given)* }),
        _ => quote!(#private::HandlerOptions { #(#given)* ..#none }),
    }
}

fn optional(value: Option<&impl ToTokens>) -> TokenStream {
    let private = alias(Span::call_site());
    match value {
        Some(value) => quote!(#private::Some(#value)),
        None => quote!(#private::None),
    }
}

/// A closure from the inputs to the key of the command.
fn key_reader(key: &Key, function: &Function, asker: &Asker<'_>) -> TokenStream {
    // One hygiene for all uses of the local, and the place of the user's path for each.
    let at = |place| function.signature.ident.span().located_at(place);
    let command = |place| Ident::new("whizbang_command", at(place));
    let field = |path: &FieldPath| {
        let (command, members) = (command(path.span()), path.members());
        quote_spanned!(at(path.span())=> & #command #(.#members)*)
    };
    let read = |place, what: &str, argument: TokenStream| {
        let private = alias(at(place));
        let what = Ident::new(what, at(place));
        quote_spanned!(at(place)=> #private::#what(#argument))
    };
    let value = match key {
        Key::Field(path) => read(path.span(), "key_of", field(path)),
        Key::Fields(paths) => {
            let parts = paths
                .iter()
                .map(|path| read(path.span(), "key_part", field(path)));
            read(key.span(), "key_of", quote!(&(#(#parts,)*)))
        }
        Key::Function(function) => {
            let command = command(key.span());
            let arguments = quote_spanned!(at(key.span())=> #function, &#command);
            read(key.span(), "key_by", arguments)
        }
    };
    let command = command(key.span());
    let take = asker.message("take", Some(quote!(__inputs)), true);
    quote! {
        |__inputs| {
            let #command = #take;
            #value
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
