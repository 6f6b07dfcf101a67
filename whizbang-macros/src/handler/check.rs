//! What must hold between the parts: other attributes on the function, options and signature.

use syn::Attribute;

use super::{
    attr::Options,
    model::{self, Function, Inputs, Kind},
};
use crate::errors::Errors;

/// Refuses a second attribute of ours, and takes it off so that it does not run as well.
pub(crate) fn attributes(kind: Kind, function: &mut Function, errors: &mut Errors) {
    let ours = |attribute: &Attribute| model::is_ours(attribute.path());
    for attribute in &function.attributes {
        let Some(second) = ours(attribute) else {
            continue;
        };
        let text = if second == kind {
            format!("`#[{}]` is given twice; keep one", kind.name())
        } else {
            "a function is either a `#[handler]` or an `#[idempotent_command]`; keep one".to_owned()
        };
        errors.at(attribute, text);
    }
    function
        .attributes
        .retain(|attribute| ours(attribute).is_none());
}

/// Refuses options that the signature contradicts.
pub(crate) fn options(_options: &Options, _inputs: Option<&Inputs>, _errors: &mut Errors) {}
