//! `#[message(…)]`.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::quote;
use syn::{Attribute, DeriveInput, Expr, LitStr, Meta, Path, Type};

use super::Kind;
use crate::{
    errors::Errors,
    field::FieldPath,
    krate, names,
    options::{self, Entry, Known},
};

const EVENT: &[Known] = &[
    Known::new("name", "name = \"orders.order_placed\""),
    Known::repeatable("alias", "alias = \"orders.placed\""),
    Known::new("stream", "stream = order_id"),
    Known::new("crate", "crate = path::to::whizbang"),
];

const COMMAND: &[Known] = &[
    Known::new("name", "name = \"orders.place_order\""),
    Known::repeatable("alias", "alias = \"orders.place\""),
    Known::new("stream", "stream = order_id"),
    Known::new("reply", "reply = OrderReceipt"),
    Known::new("crate", "crate = path::to::whizbang"),
];

/// What the attribute says.
pub(crate) struct Options {
    pub(crate) krate: Path,
    pub(crate) name: Option<LitStr>,
    pub(crate) aliases: Vec<LitStr>,
    pub(crate) stream: Option<FieldPath>,
    pub(crate) reply: Option<Type>,
}

/// Reads all `#[message(…)]` of the type as one list.
pub(crate) fn read(kind: Kind, input: &DeriveInput, errors: &mut Errors) -> Options {
    let mut options = Options {
        krate: krate::default_path(),
        name: None,
        aliases: Vec::new(),
        stream: None,
        reply: None,
    };
    let known = match kind {
        Kind::Event => EVENT,
        Kind::Command => COMMAND,
    };
    let (list, malformed) = all_lists(&input.attrs, errors);
    let says_name = malformed || tries_to_name(&list, known);
    for entry in options::read("message", list, known, errors) {
        if let Err(error) = apply(&entry, &mut options) {
            errors.add(error);
        }
    }
    // A name that is there but wrong has been reported already.
    if options.name.is_none() && !says_name {
        errors.at_span(
            input.ident.span(),
            missing_name(kind, &input.ident.to_string()),
        );
    }
    check_names(&options, errors);
    options
}

/// The lists of all attributes, and whether one of them is no list.
fn all_lists(attributes: &[Attribute], errors: &mut Errors) -> (TokenStream, bool) {
    let mut all = TokenStream::new();
    let mut malformed = false;
    for attribute in attributes.iter().filter(|a| a.path().is_ident("message")) {
        match &attribute.meta {
            Meta::List(list) => {
                let tokens = &list.tokens;
                all.extend(quote!(#tokens,));
            }
            other => {
                malformed = true;
                let text = "the attribute is a list: `#[message(name = \"orders.order_placed\")]`";
                errors.at(other, text);
            }
        }
    }
    (all, malformed)
}

/// Whether an option is called `name`, or something that it is a slip of.
fn tries_to_name(list: &TokenStream, known: &[Known]) -> bool {
    let known = || known.iter().map(|known| known.name);
    list.clone().into_iter().any(|token| match token {
        TokenTree::Ident(key) => names::closest(&key.to_string(), known()) == Some("name"),
        _ => false,
    })
}

fn apply(entry: &Entry, options: &mut Options) -> Result<(), syn::Error> {
    match entry.known.name {
        "name" => options.name = Some(entry.name()?),
        "alias" => options.aliases.push(entry.name()?),
        "crate" => options.krate = entry.value("the path of the whizbang crate")?,
        "reply" => options.reply = Some(entry.value("a type")?),
        "stream" => {
            let wanted = "the field that names the stream";
            let path: Expr = entry.value(wanted)?;
            let text = "a stream is a field of the message, such as `stream = order_id` or `stream = customer.id`";
            options.stream = Some(FieldPath::from_expr(&path, text)?);
        }
        _ => {}
    }
    Ok(())
}

fn check_names(options: &Options, errors: &mut Errors) {
    let mut seen: Vec<String> = options.name.iter().map(LitStr::value).collect();
    for alias in &options.aliases {
        let value = alias.value();
        if seen.contains(&value) {
            let text = format!("`{value}` is listed twice; a name and its aliases must all differ");
            errors.at_span(alias.span(), text);
        }
        seen.push(value);
    }
}

fn missing_name(kind: Kind, ident: &str) -> String {
    let derive = kind.name();
    let name = snake_case(ident);
    format!(
        "`{ident}` needs a wire name: below `#[derive({derive})]` write `#[message(name = \"your_service.{name}\")]`; it stays when the type is renamed or moved"
    )
}

fn snake_case(ident: &str) -> String {
    let mut name = String::new();
    for character in ident.chars() {
        if character.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.extend(character.to_lowercase());
    }
    name
}

impl Options {
    /// The wire name; its absence has been reported.
    pub(crate) fn name_or_placeholder(&self) -> LitStr {
        let placeholder = || LitStr::new("unnamed", Span::call_site());
        self.name.clone().unwrap_or_else(placeholder)
    }
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    fn faults(kind: Kind, input: DeriveInput) -> Vec<String> {
        let mut errors = Errors::default();
        read(kind, &input, &mut errors);
        errors.texts()
    }

    #[test]
    fn a_missing_name_is_suggested() {
        let texts = faults(
            Kind::Event,
            parse_quote!(
                struct OrderPlaced;
            ),
        );
        assert_eq!(texts.len(), 1);
        assert!(texts[0].contains("your_service.order_placed"), "{texts:?}");
    }

    #[test]
    fn names_must_differ_and_be_storable() {
        let input = parse_quote!(
            #[message(name = "a", alias = "b", alias = "a", alias = "b", alias = "c d")]
            struct Order;
        );
        assert_eq!(faults(Kind::Event, input).len(), 3);
    }

    #[test]
    fn a_wrong_name_is_not_missing_as_well() {
        let texts = faults(
            Kind::Event,
            parse_quote!(
                #[message(name = 5)]
                struct Order;
            ),
        );
        assert_eq!(texts.len(), 1);
        assert!(texts[0].contains("takes a string"), "{texts:?}");
    }

    #[test]
    fn only_commands_have_replies() {
        let input: DeriveInput = parse_quote!(
            #[message(name = "a", reply = u8)]
            struct Order;
        );
        assert_eq!(faults(Kind::Command, input.clone()), [""; 0]);
        assert_eq!(faults(Kind::Event, input).len(), 1);
    }

    #[test]
    fn several_attributes_are_one_list() {
        let input = parse_quote!(
            #[message(name = "a")]
            #[message(stream = id)]
            #[message(stream = other)]
            struct Order {
                id: u8,
            }
        );
        assert_eq!(
            faults(Kind::Event, input),
            ["`stream` is given twice; keep one"]
        );
    }
}
