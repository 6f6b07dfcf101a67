//! What can be said of a signature without knowing its types.

use quote::ToTokens;
use syn::{
    Attribute, FnArg, GenericParam, Lifetime, PatType, Path, ReturnType, Signature, Type,
    TypeImplTrait, TypeReference,
    visit::{self, Visit},
};

use super::model::{Function, Input, Inputs, Kind};
use crate::errors::Errors;

/// Reads arguments and return type, reporting every fault.
pub(crate) fn read(kind: Kind, function: &Function, errors: &mut Errors) -> Option<Inputs> {
    let signature = &function.signature;
    check_qualifiers(kind, signature, errors);
    check_generics(signature, errors);
    let mut types = Types { errors };
    types.visit_signature(signature);
    let all = read_arguments(kind, signature, errors);
    let output = read_output(kind, signature, errors)?;
    let message = all.iter().find_map(|input| match input {
        Input::Message(ty) => Some(ty.clone()),
        _ => None,
    })?;
    Some(Inputs {
        all,
        message,
        output,
    })
}

fn check_qualifiers(kind: Kind, signature: &Signature, errors: &mut Errors) {
    let what = kind.name();
    if let Some(token) = signature.constness {
        errors.at(token, "a handler runs at run time: remove `const`");
    }
    if signature.asyncness.is_none() {
        let name = &signature.ident;
        errors.at(
            signature.fn_token,
            format!("`#[{what}]` needs an async function: write `async fn {name}`"),
        );
    }
    match &signature.safety {
        syn::Safety::Default => {}
        other => errors.at(
            other.to_token_stream(),
            "the framework calls handlers from safe code: remove `unsafe`",
        ),
    }
    if let Some(abi) = &signature.abi {
        errors.at(abi, "a handler is called from Rust: remove `extern`");
    }
    if let Some(variadic) = &signature.variadic {
        errors.at(variadic, "a handler has a fixed list of arguments");
    }
}

fn check_generics(signature: &Signature, errors: &mut Errors) {
    for parameter in &signature.generics.params {
        let text = match parameter {
            GenericParam::Lifetime(_) => {
                "a handler has no lifetime parameters: leave them out and write `&mut HandlerContext<'_>`"
            }
            _ => {
                "a handler cannot be generic, since nothing says for which types to register it; write one handler for each type and let them call a generic function"
            }
        };
        errors.at(parameter, text);
    }
}

/// Finds what no type of a handler may contain.
struct Types<'e> {
    errors: &'e mut Errors,
}

impl<'ast> Visit<'ast> for Types<'_> {
    fn visit_type_impl_trait(&mut self, ty: &'ast TypeImplTrait) {
        self.errors.at(
            ty,
            "a handler names its types: `impl Trait` leaves open which type is meant",
        );
    }

    fn visit_path(&mut self, path: &'ast Path) {
        if path
            .segments
            .first()
            .is_some_and(|first| first.ident == "Self")
        {
            self.errors.at(path, "a handler is a free function, not a method: `Self` means nothing there; name the type and move the function out of the `impl`");
        }
        visit::visit_path(self, path);
    }

    fn visit_receiver(&mut self, receiver: &'ast syn::Receiver) {
        self.errors.at(receiver, "a handler is a free function, not a method: move it out of the `impl` and take what it needs from `self` as `State<T>`");
    }
}

fn read_arguments(kind: Kind, signature: &Signature, errors: &mut Errors) -> Vec<Input> {
    let name = &signature.ident;
    if signature.inputs.is_empty() {
        let text = format!(
            "a handler takes its message as the first argument: `{}`",
            kind.example()
        );
        errors.at(name, text);
        return Vec::new();
    }
    let mut all = Vec::new();
    for (position, argument) in signature.inputs.iter().enumerate() {
        let FnArg::Typed(argument) = argument else {
            // The receiver was reported with the types.
            continue;
        };
        check_attributes(&argument.attrs, errors);
        if let Some(input) = read_argument(position, argument, &all, errors) {
            all.push(input);
        }
    }
    let is_method = signature.receiver().is_some();
    let has_context = all.iter().any(|input| matches!(input, Input::Context(_)));
    if kind == Kind::Command && !has_context && !is_method {
        errors.at(name, "an idempotent command needs the context, since its key is written in the same transaction as its effects: add `cx: &mut HandlerContext<'_>` after the command");
    }
    all
}

const MESSAGE_FIRST: &str = "the message comes first: put this argument after it";

fn read_argument(
    position: usize,
    argument: &PatType,
    earlier: &[Input],
    errors: &mut Errors,
) -> Option<Input> {
    let ty = bare(&argument.ty);
    let Type::Reference(reference) = ty else {
        if position == 0 && is_state(ty) {
            errors.at(ty, MESSAGE_FIRST);
            return None;
        }
        return Some(if position == 0 {
            Input::Message(ty.clone())
        } else {
            Input::Value(ty.clone())
        });
    };
    if position == 0 {
        let text = if reference.mutability.is_some() {
            MESSAGE_FIRST
        } else {
            "the first argument is the message, taken by value: if this is it, remove the `&`, else put the message before it"
        };
        errors.at(reference, text);
        return None;
    }
    if reference.mutability.is_none() {
        return Some(Input::Value(ty.clone()));
    }
    if earlier
        .iter()
        .any(|input| matches!(input, Input::Context(_)))
    {
        errors.at(
            reference,
            "a handler has one context, and this is a second `&mut`",
        );
        return None;
    }
    check_context_lifetimes(reference, errors);
    Some(Input::Context((*reference.elem).clone()))
}

fn check_context_lifetimes(reference: &TypeReference, errors: &mut Errors) {
    struct Named<'ast>(Vec<&'ast Lifetime>);
    impl<'ast> Visit<'ast> for Named<'ast> {
        fn visit_lifetime(&mut self, lifetime: &'ast Lifetime) {
            if lifetime.ident != "_" {
                self.0.push(lifetime);
            }
        }
    }
    let mut named = Named(Vec::new());
    named.visit_type_reference(reference);
    // Any other lifetime was declared, and refused where it was.
    let mut lifetimes = named.0.into_iter();
    if let Some(lifetime) = lifetimes.find(|lifetime| lifetime.ident == "static") {
        errors.at(
            lifetime,
            "the context lives as long as the call: write `&mut HandlerContext<'_>`",
        );
    }
}

/// The expansion has to know how many arguments there are.
fn check_attributes(attributes: &[Attribute], errors: &mut Errors) {
    let conditional = attributes
        .iter()
        .filter(|a| a.path().is_ident("cfg") || a.path().is_ident("cfg_attr"));
    for attribute in conditional {
        errors.at(attribute, "an argument of a handler cannot be conditional; write two handlers, each with the condition on the function");
    }
}

fn read_output(kind: Kind, signature: &Signature, errors: &mut Errors) -> Option<Type> {
    let shape = match kind {
        Kind::Handler => "`Result<(), E>`",
        Kind::Command => "`Result<Reply, E>`, with the reply type of the command",
    };
    match &signature.output {
        ReturnType::Default => {
            let text = format!(
                "a handler returns {shape}; without an error it could not ask for a retry: add `-> Result<…>`"
            );
            errors.at(&signature.ident, text);
            None
        }
        ReturnType::Type(_, ty) if matches!(**ty, Type::Never(_)) => {
            errors.at(
                ty,
                format!("a handler returns {shape}, and it must return to be completed"),
            );
            None
        }
        ReturnType::Type(_, ty) => Some((**ty).clone()),
    }
}

/// Whether it reads `State<…>`. A message is never generic, so this one is not the user's own.
fn is_state(ty: &Type) -> bool {
    let Type::Path(path) = ty else { return false };
    let last = path.path.segments.last();
    last.is_some_and(|last| last.ident == "State" && !last.arguments.is_none())
}

/// The type without the parentheses around it.
fn bare(ty: &Type) -> &Type {
    match ty {
        Type::Paren(inner) => bare(&inner.elem),
        Type::Group(inner) => bare(&inner.elem),
        other => other,
    }
}
