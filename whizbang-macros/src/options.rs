//! The `key = value` lists of our attributes, cut into entries before they are read, so that one
//! wrong entry does not hide the next.

use proc_macro2::{Ident, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Error, LitInt, LitStr, parse::Parse};

use crate::{errors::Errors, names};

/// An option that an attribute knows.
pub(crate) struct Known {
    /// Its name.
    pub(crate) name: &'static str,
    /// How it is written, for errors.
    pub(crate) example: &'static str,
    /// Whether it may be given more than once.
    pub(crate) repeatable: bool,
}

impl Known {
    pub(crate) const fn new(name: &'static str, example: &'static str) -> Self {
        Self {
            name,
            example,
            repeatable: false,
        }
    }

    pub(crate) const fn repeatable(name: &'static str, example: &'static str) -> Self {
        Self {
            name,
            example,
            repeatable: true,
        }
    }
}

/// One `key = value`, known to the attribute.
pub(crate) struct Entry {
    pub(crate) key: Ident,
    pub(crate) known: &'static Known,
    value: TokenStream,
}

impl Entry {
    /// The value as `T`; `wanted` says what it should have been.
    pub(crate) fn value<T: Parse>(&self, wanted: &str) -> Result<T, Error> {
        syn::parse2(self.value.clone()).map_err(|_| self.wrong_kind(wanted))
    }

    pub(crate) fn string(&self) -> Result<LitStr, Error> {
        self.value("a string")
    }

    /// A string that can be stored as a name.
    pub(crate) fn name(&self) -> Result<LitStr, Error> {
        let name = self.string()?;
        match names::fault(&name.value()) {
            Some(fault) => Err(Error::new(
                name.span(),
                format!(
                    "`{}` {fault}; write for example `{}`",
                    self.key, self.known.example
                ),
            )),
            None => Ok(name),
        }
    }

    /// A whole number from 1.
    pub(crate) fn number(&self) -> Result<u32, Error> {
        let wanted = "a whole number from 1 to 4294967295";
        let literal: LitInt = self.value(wanted)?;
        match literal.base10_parse::<u32>() {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(self.wrong_kind(wanted)),
        }
    }

    fn wrong_kind(&self, wanted: &str) -> Error {
        Error::new_spanned(
            &self.value,
            format!(
                "`{}` takes {wanted}; write for example `{}`",
                self.key, self.known.example
            ),
        )
    }
}

/// Reads the list of an attribute called `attribute`, reporting what it does not know.
pub(crate) fn read(
    attribute: &str,
    list: TokenStream,
    known: &'static [Known],
    errors: &mut Errors,
) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for chunk in split_at_commas(list) {
        let Some(entry) = errors.ok(read_entry(attribute, chunk, known)) else {
            continue;
        };
        let repeated = entries.iter().any(|earlier| earlier.key == entry.key);
        if repeated && !entry.known.repeatable {
            errors.at(
                &entry.key,
                format!("`{}` is given twice; keep one", entry.key),
            );
            continue;
        }
        entries.push(entry);
    }
    entries
}

fn read_entry(
    attribute: &str,
    chunk: Vec<TokenTree>,
    known: &'static [Known],
) -> Result<Entry, Error> {
    let mut tokens = chunk.into_iter();
    let key = match tokens.next() {
        Some(TokenTree::Ident(key)) => key,
        other => {
            let example = known.first().map_or("", |known| known.example);
            let text = format!("`#[{attribute}]` takes a list of options such as `{example}`");
            return Err(Error::new_spanned(other.to_token_stream(), text));
        }
    };
    let Some(known) = known.iter().find(|known| key == known.name) else {
        return Err(unknown(attribute, &key, known));
    };
    let equals = matches!(tokens.next(), Some(TokenTree::Punct(punct)) if punct.as_char() == '=');
    let value: TokenStream = tokens.collect();
    if !equals || value.is_empty() {
        let text = format!(
            "`{key}` needs a value; write for example `{}`",
            known.example
        );
        return Err(Error::new_spanned(&key, text));
    }
    Ok(Entry { key, known, value })
}

fn unknown(attribute: &str, key: &Ident, known: &[Known]) -> Error {
    let name = key.to_string();
    let names = known.iter().map(|known| known.name);
    let text = if let Some(meant) = names::closest(&name, names.clone()) {
        format!("`#[{attribute}]` has no option `{name}`; did you mean `{meant}`?")
    } else if attribute == "handler"
        && ["key", "key_fn", "scope", "version", "store_error"].contains(&name.as_str())
    {
        format!("`{name}` is an option of `#[idempotent_command]`, not of `#[handler]`")
    } else if attribute == "message" && name == "reply" {
        "only a command has a reply: derive `Command` in place of `Event`, or remove `reply`"
            .to_owned()
    } else {
        let all: Vec<_> = names.map(|name| format!("`{name}`")).collect();
        format!(
            "`#[{attribute}]` has no option `{name}`; it has {}",
            all.join(", ")
        )
    };
    Error::new(key.span(), text)
}

/// Cuts a list at its commas, leaving those inside brackets and inside `<…>` alone.
fn split_at_commas(list: TokenStream) -> Vec<Vec<TokenTree>> {
    let mut chunks = vec![Vec::new()];
    let mut depth = 0_u32;
    let mut before = ' ';
    for token in list {
        let punct = match &token {
            TokenTree::Punct(punct) => punct.as_char(),
            _ => ' ',
        };
        match punct {
            '<' => depth += 1,
            // The tip of `->` or `=>` closes nothing.
            '>' if before != '-' && before != '=' => depth = depth.saturating_sub(1),
            _ => {}
        }
        before = punct;
        if punct == ',' && depth == 0 {
            chunks.push(Vec::new());
        } else if let Some(chunk) = chunks.last_mut() {
            chunk.push(token);
        }
    }
    chunks.retain(|chunk| !chunk.is_empty());
    chunks
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::*;

    const KNOWN: &[Known] = &[
        Known::new("timeout", "timeout = \"30s\""),
        Known::new("reply", "reply = OrderReceipt"),
        Known::repeatable("alias", "alias = \"orders.place\""),
    ];

    fn read_list(list: TokenStream) -> (Vec<String>, Vec<String>) {
        let mut errors = Errors::default();
        let entries = read("handler", list, KNOWN, &mut errors);
        let keys = entries.iter().map(|entry| entry.key.to_string());
        (keys.collect(), errors.texts())
    }

    #[test]
    fn commas_inside_brackets_and_generics_do_not_cut() {
        let list = quote!(reply = HashMap<String, (u8, fn(u8) -> Vec<u8>)>, timeout = "1s",);
        let (keys, errors) = read_list(list);
        assert_eq!(keys, ["reply", "timeout"]);
        assert!(errors.is_empty(), "{errors:?}");
    }

    #[test]
    fn every_wrong_entry_is_reported() {
        let (keys, errors) = read_list(quote!(timeuot = "1s", 5, reply, timeout = "1s", frog = 1));
        assert_eq!(keys, ["timeout"]);
        assert_eq!(
            errors,
            [
                "`#[handler]` has no option `timeuot`; did you mean `timeout`?",
                "`#[handler]` takes a list of options such as `timeout = \"30s\"`",
                "`reply` needs a value; write for example `reply = OrderReceipt`",
                "`#[handler]` has no option `frog`; it has `timeout`, `reply`, `alias`",
            ]
        );
    }

    #[test]
    fn only_repeatable_options_repeat() {
        let list = quote!(alias = "a", alias = "b", timeout = "1s", timeout = "2s");
        let (keys, errors) = read_list(list);
        assert_eq!(keys, ["alias", "alias", "timeout"]);
        assert_eq!(errors, ["`timeout` is given twice; keep one"]);
    }

    #[test]
    fn a_key_on_a_plain_handler_names_the_other_attribute() {
        let (_, errors) = read_list(quote!(key = order_id));
        assert_eq!(
            errors,
            ["`key` is an option of `#[idempotent_command]`, not of `#[handler]`"]
        );
    }
}
