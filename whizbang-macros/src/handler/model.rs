//! The annotated function, with its body left unread: an editor completes inside a half-typed
//! body only if that does not keep the attribute from working.

use proc_macro2::{Ident, TokenStream};
use quote::{ToTokens, quote};
use syn::{
    Attribute, Error, Path, Signature, Token, Type, Visibility,
    parse::{Parse, ParseStream},
};

/// Which attribute was used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Handler,
    Command,
}

impl Kind {
    /// The attribute's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Handler => "handler",
            Self::Command => "idempotent_command",
        }
    }

    /// A signature to imitate.
    pub(crate) fn example(self) -> &'static str {
        match self {
            Self::Handler => "async fn reserve_stock(event: OrderPlaced) -> Result<(), StockError>",
            Self::Command => {
                "async fn place_order(command: PlaceOrder, cx: &mut HandlerContext<'_>) -> Result<OrderReceipt, PlaceOrderError>"
            }
        }
    }
}

/// A function as it was written.
pub(crate) struct Function {
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) visibility: Visibility,
    pub(crate) signature: Signature,
    body: TokenStream,
}

impl ToTokens for Function {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        let Self {
            attributes,
            visibility,
            signature,
            body,
        } = self;
        tokens.extend(quote!(#(#attributes)* #visibility #signature #body));
    }
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        Ok(Self {
            attributes: input.call(Attribute::parse_outer)?,
            visibility: input.parse()?,
            signature: input.parse()?,
            body: input.parse()?,
        })
    }
}

/// Reads the item, or says what it should have been.
pub(crate) fn parse(kind: Kind, item: TokenStream) -> Result<Function, Error> {
    let attribute = kind.name();
    let example = kind.example();
    if let Some(wrong) = other_item(&item) {
        let text = format!("`#[{attribute}]` goes on a free function: `{example}`");
        return Err(Error::new_spanned(wrong, text));
    }
    let function: Function = syn::parse2(item)?;
    if syn::parse2::<Body>(function.body.clone()).is_err() {
        let text = format!("`#[{attribute}]` needs a function with a body: `{example} {{ … }}`");
        return Err(Error::new_spanned(&function.signature, text));
    }
    Ok(function)
}

/// A block that is not looked into.
struct Body;

impl Parse for Body {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let inside;
        syn::braced!(inside in input);
        inside.parse::<TokenStream>()?;
        Ok(Self)
    }
}

/// The keyword of an item that is no function.
fn other_item(item: &TokenStream) -> Option<Ident> {
    let keyword = |input: ParseStream<'_>| {
        input.call(Attribute::parse_outer)?;
        input.parse::<Visibility>()?;
        let is_function = input.fork().parse::<Signature>().is_ok();
        // `const`, `async`, `unsafe` and `extern` may begin a function that is wrong elsewhere.
        let may_be_function = is_function
            || input.peek(Token![fn])
            || input.peek(Token![async])
            || input.peek(Token![unsafe]) && !input.peek2(Token![impl])
            || input.peek(Token![extern]);
        let keyword: Ident = input.call(syn::ext::IdentExt::parse_any)?;
        input.parse::<TokenStream>()?;
        Ok((!may_be_function).then_some(keyword))
    };
    syn::parse::Parser::parse2(keyword, item.clone())
        .ok()
        .flatten()
}

/// What the handler takes, in the order of its arguments.
pub(crate) enum Input {
    /// The message, always the first.
    Message(Type),
    /// What stands behind the one `&mut`.
    Context(Type),
    /// Anything else, to be extracted.
    Value(Type),
}

/// A signature that was understood.
pub(crate) struct Inputs {
    /// All arguments.
    pub(crate) all: Vec<Input>,
    /// The message's type.
    pub(crate) message: Type,
    /// What the function returns.
    pub(crate) output: Type,
}

impl Inputs {
    pub(crate) fn context(&self) -> Option<&Type> {
        self.all.iter().find_map(|input| match input {
            Input::Context(ty) => Some(ty),
            _ => None,
        })
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Type> {
        self.all.iter().filter_map(|input| match input {
            Input::Value(ty) => Some(ty),
            _ => None,
        })
    }
}

/// Whether an attribute of this path is one of ours.
pub(crate) fn is_ours(path: &Path) -> Option<Kind> {
    let last = path.segments.last()?;
    let kind = [Kind::Handler, Kind::Command]
        .into_iter()
        .find(|kind| last.ident == kind.name())?;
    let first = path.segments.first()?;
    (path.segments.len() == 1 || first.ident == "whizbang").then_some(kind)
}
