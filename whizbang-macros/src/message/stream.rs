//! `stream = field`: from a message to the key of its stream.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::{Data, DeriveInput, Fields, Ident, Index, Member, Path, spanned::Spanned};

use crate::{
    errors::Errors,
    field::{FieldPath, written},
    names,
};

/// The method `stream` of `Message`; `None` if the path leads to no field.
pub(crate) fn expand(
    path: &FieldPath,
    input: &DeriveInput,
    krate: &Path,
    errors: &mut Errors,
) -> Option<TokenStream> {
    let body = match &input.data {
        Data::Struct(data) => {
            let known = has_field(path, &data.fields, &format!("`{}`", input.ident), errors);
            known.then(|| key_of(&quote!(self), &path.members, path, krate))
        }
        Data::Enum(data) => {
            let mut arms = Some(TokenStream::new());
            for variant in &data.variants {
                let name = format!("variant `{}`", variant.ident);
                match (has_field(path, &variant.fields, &name, errors), &mut arms) {
                    (true, Some(arms)) => arms.extend(arm(&variant.ident, path, krate)),
                    _ => arms = None,
                }
            }
            arms.map(|arms| quote!(match self { #arms }))
        }
        // Refused as a whole.
        Data::Union(_) => None,
    }?;
    Some(quote! {
        fn stream(&self) -> ::core::option::Option<#krate::__private::StreamKey> {
            #body
        }
    })
}

fn arm(variant: &Ident, path: &FieldPath, krate: &Path) -> TokenStream {
    let (first, rest) = (&path.members[0], &path.members[1..]);
    let bound = Ident::new("__field", Span::mixed_site());
    let key = key_of(&bound, rest, path, krate);
    quote!(Self::#variant { #first: #bound, .. } => #key,)
}

/// Every token of the call stands at the user's path, so that a field of a type that cannot be a
/// key is reported there.
fn key_of(base: &impl ToTokens, members: &[Member], path: &FieldPath, krate: &Path) -> TokenStream {
    let span = path.span();
    let reference = quote_spanned!(span=> & #base #(.#members)*);
    quote_spanned!(span=> #krate::__private::AsStreamKey::as_stream_key(#reference))
}

fn has_field(path: &FieldPath, fields: &Fields, owner: &str, errors: &mut Errors) -> bool {
    let Some(first) = path.members.first() else {
        return false;
    };
    let known = members(fields);
    if known.contains(first) {
        return true;
    }
    let wanted = written(first);
    let names: Vec<_> = known.iter().map(written).collect();
    let hint = match names::closest(&wanted, names.iter().map(String::as_str)) {
        Some(meant) => format!("; did you mean `{meant}`?"),
        None if names.is_empty() => "; it has no fields".to_owned(),
        None => {
            let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
            format!("; it has {}", names.join(", "))
        }
    };
    errors.at_span(
        first.span(),
        format!("{owner} has no field `{wanted}`{hint}"),
    );
    false
}

fn members(fields: &Fields) -> Vec<Member> {
    let member = |(position, field): (usize, &syn::Field)| match &field.ident {
        Some(name) => Member::Named(name.clone()),
        None => Member::Unnamed(Index::from(position)),
    };
    fields.iter().enumerate().map(member).collect()
}
