//! `stream = field`: from a message to the key of its stream.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::{
    Data, DataEnum, DeriveInput, Fields, Ident, Index, Member, Path, Variant, spanned::Spanned,
};

use crate::{
    errors::Errors,
    field::{FieldPath, written},
    names,
    spans::moved,
};

/// The method `stream` of `Message`; `None` if the path leads to no field.
pub(crate) fn expand(
    path: &FieldPath,
    input: &DeriveInput,
    krate: &Path,
    errors: &mut Errors,
) -> Option<TokenStream> {
    // Stands at the path as well, so that an expression which begins with it does.
    let this = quote_spanned!(path.span()=> self);
    let body = match &input.data {
        Data::Struct(data) => {
            let known = has_field(path, &data.fields, &input.ident, errors);
            known.then(|| key_of(&this, path.members(), path, krate))
        }
        Data::Enum(data) => {
            check_variants(path, data, errors)?;
            let arms = data
                .variants
                .iter()
                .map(|variant| arm(&variant.ident, path, krate));
            Some(quote!(match #this { #(#arms)* }))
        }
        // Refused as a whole.
        Data::Union(_) => None,
    }?;
    Some(quote! {
        fn stream(&#this) -> ::core::option::Option<#krate::__private::StreamKey> {
            #body
        }
    })
}

fn arm(variant: &Ident, path: &FieldPath, krate: &Path) -> TokenStream {
    let first = path.first();
    let bound = Ident::new("__field", Span::mixed_site());
    let key = key_of(&bound, path.rest().iter(), path, krate);
    quote!(Self::#variant { #first: #bound, .. } => #key,)
}

/// Every token of the call stands at the user's path, so that a field of a type that cannot be a
/// key is reported there.
fn key_of<'p>(
    base: &impl ToTokens,
    members: impl Iterator<Item = &'p Member>,
    path: &FieldPath,
    krate: &Path,
) -> TokenStream {
    let span = path.span();
    let reference = quote_spanned!(span=> & #base #(.#members)*);
    let private = moved(quote!(#krate::__private), span);
    quote_spanned!(span=> #private::AsStreamKey::as_stream_key(#reference))
}

fn has_field(path: &FieldPath, fields: &Fields, owner: &Ident, errors: &mut Errors) -> bool {
    let first = path.first();
    let known = members(fields);
    if known.contains(first) {
        return true;
    }
    let wanted = written(first);
    let names: Vec<_> = known.iter().map(written).collect();
    let hint = match names::closest(&wanted, names.iter().map(String::as_str)) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None if names.is_empty() => "it has no fields".to_owned(),
        None => format!("it has {}", names::quoted(names)),
    };
    let text = format!("`{owner}` has no field `{wanted}`; {hint}");
    errors.at_span(first.span(), text);
    false
}

/// `None` if a variant lacks the field.
fn check_variants(path: &FieldPath, data: &DataEnum, errors: &mut Errors) -> Option<()> {
    let first = path.first();
    let lacking = |variant: &&Variant| !members(&variant.fields).contains(first);
    let lacking: Vec<_> = data.variants.iter().filter(lacking).collect();
    if lacking.is_empty() {
        return Some(());
    }
    let names = names::quoted(lacking.iter().map(|variant| variant.ident.to_string()));
    let text = format!(
        "every variant needs the field `{}` that names the stream; it is missing in {names}",
        written(first)
    );
    errors.at_span(first.span(), text);
    None
}

fn members(fields: &Fields) -> Vec<Member> {
    let member = |(position, field): (usize, &syn::Field)| match &field.ident {
        Some(name) => Member::Named(name.clone()),
        None => Member::Unnamed(Index::from(position)),
    };
    fields.iter().enumerate().map(member).collect()
}
