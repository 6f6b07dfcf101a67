//! The options of the attributes.

use proc_macro2::{Span, TokenStream};
use syn::{Error, Expr, LitStr, Path, spanned::Spanned};

use super::model::Kind;
use crate::{
    duration::Millis,
    errors::Errors,
    field::FieldPath,
    krate,
    options::{self, Entry, Known},
};

const NAME: Known = Known::new("name", "name = \"mail_customer\"");
const LANE: Known = Known::new("lane", "lane = \"orders\"");
const MAX_ATTEMPTS: Known = Known::new("max_attempts", "max_attempts = 5");
const BACKOFF: Known = Known::new("backoff", "backoff = \"1s..5m\"");
const TIMEOUT: Known = Known::new("timeout", "timeout = \"30s\"");
const CONCURRENCY: Known = Known::new("concurrency", "concurrency = 8");
const ON_DEAD: Known = Known::new("on_dead", "on_dead = \"park\"");
const ALREADY_DONE: Known =
    Known::repeatable("already_done", "already_done = \"orders_number_key\"");
const CRATE: Known = Known::new("crate", "crate = path::to::whizbang");

const HANDLER: &[Known] = &[
    NAME,
    LANE,
    MAX_ATTEMPTS,
    BACKOFF,
    TIMEOUT,
    CONCURRENCY,
    ON_DEAD,
    ALREADY_DONE,
    CRATE,
];

const COMMAND: &[Known] = &[
    Known::new("key", "key = order_id"),
    Known::new("key_fn", "key_fn = key_of_order"),
    Known::new("scope", "scope = \"orders.place_order\""),
    Known::new("version", "version = \"2\""),
    Known::new("store_error", "store_error = PlaceOrderError::is_final"),
    NAME,
    LANE,
    MAX_ATTEMPTS,
    BACKOFF,
    TIMEOUT,
    CONCURRENCY,
    ON_DEAD,
    ALREADY_DONE,
    CRATE,
];

/// What makes two commands the same.
pub(crate) enum Key {
    /// One field.
    Field(FieldPath),
    /// Several fields together.
    Fields(Vec<FieldPath>),
    /// A function from the command to its key.
    Function(Path),
}

impl Key {
    pub(crate) fn span(&self) -> Span {
        match self {
            Self::Field(path) => path.span(),
            Self::Fields(paths) => paths.first().map_or_else(Span::call_site, FieldPath::span),
            Self::Function(function) => function.span(),
        }
    }
}

/// What the attribute says.
pub(crate) struct Options {
    pub(crate) krate: Path,
    pub(crate) name: Option<LitStr>,
    pub(crate) lane: Option<LitStr>,
    pub(crate) max_attempts: Option<u32>,
    pub(crate) backoff: Option<(Millis, Millis)>,
    pub(crate) timeout: Option<Millis>,
    pub(crate) concurrency: Option<u32>,
    pub(crate) park: Option<bool>,
    /// Whether a key is given, be it right or wrong.
    says_key: bool,
    pub(crate) key: Option<Key>,
    pub(crate) scope: Option<LitStr>,
    pub(crate) version: Option<LitStr>,
    pub(crate) store_error: Option<Path>,
    pub(crate) already_done: Vec<LitStr>,
}

/// Reads the list in the attribute's parentheses.
///
/// What is missing is reported at `name`, the function's.
pub(crate) fn read(kind: Kind, list: TokenStream, name: Span, errors: &mut Errors) -> Options {
    let mut options = Options {
        krate: krate::default_path(),
        name: None,
        lane: None,
        max_attempts: None,
        backoff: None,
        timeout: None,
        concurrency: None,
        park: None,
        says_key: false,
        key: None,
        scope: None,
        version: None,
        store_error: None,
        already_done: Vec::new(),
    };
    let known = match kind {
        Kind::Handler => HANDLER,
        Kind::Command => COMMAND,
    };
    let mentions_key = list.clone().into_iter().any(|token| {
        let token = token.to_string();
        token == "key" || token == "key_fn"
    });
    for entry in options::read(kind.name(), list, known, errors) {
        if let Err(error) = apply(&entry, &mut options) {
            errors.add(error);
        }
    }
    // A key that is there but wrong has been reported already.
    if kind == Kind::Command && !mentions_key {
        errors.at_span(
            name,
            "an idempotent command needs a key, the field that a retry repeats: `#[idempotent_command(key = order_id)]`, or several: `key = (tenant_id, order_number)`",
        );
    }
    options
}

fn apply(entry: &Entry, options: &mut Options) -> Result<(), Error> {
    match entry.known.name {
        "crate" => options.krate = entry.value("the path of the whizbang crate")?,
        "name" => options.name = Some(entry.name()?),
        "lane" => options.lane = Some(entry.name()?),
        "scope" => options.scope = Some(entry.name()?),
        "version" => options.version = Some(entry.name()?),
        "store_error" => {
            let wanted = "the path of a function from `&` the error to `bool`";
            options.store_error = Some(entry.value(wanted)?);
        }
        "already_done" => options.already_done.push(entry.name()?),
        "max_attempts" => options.max_attempts = Some(entry.number()?),
        "concurrency" => options.concurrency = Some(entry.number()?),
        "timeout" => options.timeout = Some(duration(entry, Millis::parse)?),
        "backoff" => options.backoff = Some(duration(entry, Millis::parse_range)?),
        "on_dead" => options.park = Some(parks(entry)?),
        "key" => {
            only_key(entry, options)?;
            options.key = Some(key(entry)?);
        }
        "key_fn" => {
            only_key(entry, options)?;
            let function = entry.value("the path of a function from the command to its key")?;
            options.key = Some(Key::Function(function));
        }
        _ => {}
    }
    Ok(())
}

fn only_key(entry: &Entry, options: &mut Options) -> Result<(), Error> {
    if std::mem::replace(&mut options.says_key, true) {
        let text = "`key` and `key_fn` both say what the key is; keep one";
        return Err(Error::new(entry.key.span(), text));
    }
    Ok(())
}

fn duration<T>(entry: &Entry, parse: fn(&str) -> Result<T, String>) -> Result<T, Error> {
    let text = entry.string()?;
    parse(&text.value())
        .map_err(|fault| Error::new(text.span(), format!("`{}` {fault}", entry.key)))
}

fn parks(entry: &Entry) -> Result<bool, Error> {
    let wanted =
        "`\"park\"` (the stream stops until the dead letter is dealt with) or `\"continue\"`";
    let text: LitStr = entry.value(wanted)?;
    match text.value().as_str() {
        "park" => Ok(true),
        "continue" => Ok(false),
        other => Err(Error::new(
            text.span(),
            format!("`on_dead` takes {wanted}, not `{other}`"),
        )),
    }
}

fn key(entry: &Entry) -> Result<Key, Error> {
    const MOST_FIELDS: usize = 4;
    let expr: Expr = entry.value("a field of the command, or several in parentheses")?;
    let Expr::Tuple(tuple) = &expr else {
        return key_field(&expr).map(Key::Field);
    };
    if tuple.elems.is_empty() {
        return Err(Error::new_spanned(&expr, "a key needs at least one field"));
    }
    if tuple.elems.len() > MOST_FIELDS {
        let text = format!(
            "a key has at most {MOST_FIELDS} fields; join some of them in a function and use `key_fn`"
        );
        return Err(Error::new_spanned(&expr, text));
    }
    let fields: Result<_, _> = tuple.elems.iter().map(key_field).collect();
    fields.map(Key::Fields)
}

fn key_field(expr: &Expr) -> Result<FieldPath, Error> {
    let text = match expr {
        Expr::Call(_) | Expr::MethodCall(_) | Expr::Macro(_) => {
            "a key is read from the command, not computed here: a retry would get another one; name a field, or write a function from the command to its key and use `key_fn = that_function`"
        }
        _ => {
            "a key is a field of the command, such as `key = order_id`, `key = customer.id` or `key = (tenant_id, order_number)`; for anything else use `key_fn = function`"
        }
    };
    FieldPath::from_expr(expr, text)
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::*;

    fn faults(kind: Kind, list: TokenStream) -> Vec<String> {
        let mut errors = Errors::default();
        read(kind, list, Span::call_site(), &mut errors);
        errors.texts()
    }

    #[test]
    fn all_options_together() {
        let list = quote!(
            name = "mail",
            lane = "orders",
            max_attempts = 5,
            backoff = "1s..5m",
            timeout = "30s",
            concurrency = 8,
            on_dead = "park",
            crate = wb
        );
        let mut errors = Errors::default();
        let options = read(Kind::Handler, list, Span::call_site(), &mut errors);
        assert_eq!(errors.texts(), [""; 0]);
        assert_eq!(options.max_attempts, Some(5));
        assert_eq!(options.timeout, Millis::parse("30s").ok());
        assert_eq!(options.backoff, Millis::parse_range("1s..5m").ok());
        assert_eq!(options.concurrency, Some(8));
        assert_eq!(options.park, Some(true));
        assert!(options.krate.is_ident("wb"));
    }

    #[test]
    fn each_fault_is_reported() {
        let list = quote!(
            max_attempts = 0,
            backoff = 5,
            timeout = "5 parsecs",
            concurrency = "8",
            on_dead = "explode",
            name = ""
        );
        assert_eq!(faults(Kind::Handler, list).len(), 6);
    }

    #[test]
    fn keys_are_fields() {
        for list in [
            quote!(key = order_id),
            quote!(key = (order_id)),
            quote!(key = customer.id),
            quote!(key = (tenant_id, order.number)),
            quote!(key_fn = keys::of_order),
        ] {
            assert_eq!(faults(Kind::Command, list.clone()), [""; 0], "{list}");
        }
    }

    #[test]
    fn keys_are_nothing_else() {
        for list in [
            quote!(),
            quote!(key),
            quote!(key = ()),
            quote!(key = Uuid::now_v7()),
            quote!(key = order_id.to_string()),
            quote!(key = "order_id"),
            quote!(key = (a, b, c, d, e)),
            quote!(key = (order_id, now())),
            quote!(key = order_id, key_fn = keys::of_order),
            quote!(key_fn = 5),
        ] {
            assert_eq!(faults(Kind::Command, list.clone()).len(), 1, "{list}");
        }
    }
}
