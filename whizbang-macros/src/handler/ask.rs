//! Questions about the user's types, in the form `<Type as Trait>::item`.
//!
//! The compiler reports a type that does not fit at the type, and once more at the whole
//! expression where an associated type takes part. Both are the same place when the expression
//! begins and ends where the type does, and then they are printed once. So the first token of a
//! question takes the span of the type's first token, and the last that of its last.

use proc_macro2::{Delimiter, Group, Ident, Punct, Spacing, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::{Path, Type, spanned::Spanned};

use super::model::Kind;
use crate::spans::ends;

/// The module that the traits are in, under the name that it has inside a definition, standing at
/// `at`.
pub(super) fn alias(at: Span) -> Ident {
    Ident::new("__wb", at)
}

/// Asks for one handler.
pub(super) struct Asker<'a> {
    kind: Kind,
    message: &'a Type,
}

impl<'a> Asker<'a> {
    pub(super) fn new(kind: Kind, message: &'a Type) -> Self {
        Self { kind, message }
    }

    /// Something of the message.
    pub(super) fn message(
        &self,
        item: &str,
        arguments: Option<TokenStream>,
        fallible: bool,
    ) -> TokenStream {
        let ends = ends(self.message);
        let subject = match self.kind {
            Kind::Handler => self.message.to_token_stream(),
            Kind::Command => self.of_command("Itself"),
        };
        self.ask(
            ends,
            &subject,
            &quote!(HandlerMessage),
            item,
            arguments,
            fallible,
        )
    }

    /// Something of an argument.
    pub(super) fn argument(
        &self,
        ty: &Type,
        item: &str,
        arguments: Option<TokenStream>,
        fallible: bool,
    ) -> TokenStream {
        let of = quote!(Argument<'_>);
        self.ask(
            ends(ty),
            &ty.to_token_stream(),
            &of,
            item,
            arguments,
            fallible,
        )
    }

    /// The erased form of `call`, a function that takes this context.
    pub(super) fn context(&self, ty: &Type, call: &str) -> TokenStream {
        let of = match self.kind {
            Kind::Handler => quote!(IsContext),
            Kind::Command => quote!(IsCommandContext),
        };
        let (first, last) = ends(ty);
        // The argument is reported as well. Empty generics give it a second token and so a second
        // end.
        let call = Ident::new(call, first);
        let generics = quote_spanned!(last=> ::<>);
        let arguments = quote!(#call #generics);
        self.ask(
            (first, last),
            &ty.to_token_stream(),
            &of,
            "erase",
            Some(arguments),
            false,
        )
    }

    /// The function that reads what the handler returned; `store_error` says which errors are the
    /// command's answer.
    pub(super) fn output(&self, ty: &Type, store_error: Option<&Path>) -> TokenStream {
        let Some(chosen) = store_error else {
            let of = match self.kind {
                Kind::Handler => quote!(HandlerReturn),
                Kind::Command => self.for_reply("CommandReturn"),
            };
            return self.of_output(ty, &of, "into_result", None);
        };
        let of = self.for_reply("StoringReturn");
        let output = Ident::new("__output", chosen.span());
        let arguments = quote!(#output, #chosen);
        let read = self.of_output(ty, &of, "into_result_storing", Some(arguments));
        quote!(|#output| #read)
    }

    /// The function that reads a stored error.
    pub(super) fn stored_error(&self, ty: &Type) -> TokenStream {
        let of = self.for_reply("StoringReturn");
        self.of_output(ty, &of, "stored_error", None)
    }

    fn of_output(
        &self,
        ty: &Type,
        of: &TokenStream,
        item: &str,
        arguments: Option<TokenStream>,
    ) -> TokenStream {
        self.ask(ends(ty), &ty.to_token_stream(), of, item, arguments, false)
    }

    /// A trait that is generic over the command's reply.
    fn for_reply(&self, of: &str) -> TokenStream {
        let of = Ident::new(of, Span::call_site());
        let reply = self.of_command("Reply");
        quote!(#of<#reply>)
    }

    fn of_command(&self, item: &str) -> TokenStream {
        let ends = ends(self.message);
        let ty = self.message.to_token_stream();
        self.ask(ends, &ty, &quote!(IsCommand), item, None, false)
    }

    fn ask(
        &self,
        (first, last): (Span, Span),
        subject: &TokenStream,
        of: &TokenStream,
        item: &str,
        arguments: Option<TokenStream>,
        fallible: bool,
    ) -> TokenStream {
        let private = alias(first);
        let item = Ident::new(item, last);
        let mut question = quote_spanned!(first=> <#subject as #private::#of>::#item);
        if let Some(arguments) = arguments {
            let mut group = Group::new(Delimiter::Parenthesis, arguments);
            group.set_span(last);
            question.extend([TokenTree::Group(group)]);
        }
        if fallible {
            let mut mark = Punct::new('?', Spacing::Alone);
            mark.set_span(last);
            question.extend([TokenTree::Punct(mark)]);
        }
        question
    }
}
