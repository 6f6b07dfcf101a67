//! The other attributes on the function.

use syn::Attribute;

use super::model::{self, Function, Kind};
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
