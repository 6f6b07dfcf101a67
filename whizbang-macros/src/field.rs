//! Paths to a field, such as `order_id`, `customer.id` or `0`.

use proc_macro2::Span;
use syn::{Error, Expr, Ident, Index, Lit, Member, spanned::Spanned};

/// The members that lead from a message to a field.
pub(crate) struct FieldPath {
    first: Member,
    rest: Vec<Member>,
}

impl FieldPath {
    /// Reads the path; `otherwise` is the text for anything that is none.
    pub(crate) fn from_expr(expr: &Expr, otherwise: &str) -> Result<Self, Error> {
        let mut members = Vec::new();
        collect(expr, &mut members).ok_or_else(|| Error::new_spanned(expr, otherwise))?;
        let mut members = members.into_iter();
        match members.next() {
            Some(Member::Named(first)) if first == "self" => Err(Error::new_spanned(
                expr,
                "a field path starts at the message: leave out `self.`",
            )),
            Some(first) => Ok(Self {
                first,
                rest: members.collect(),
            }),
            None => Err(Error::new_spanned(expr, otherwise)),
        }
    }

    /// The field of the message itself.
    pub(crate) fn first(&self) -> &Member {
        &self.first
    }

    /// What follows inside that field.
    pub(crate) fn rest(&self) -> &[Member] {
        &self.rest
    }

    /// All members, outermost first.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Member> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    /// Where the path begins.
    pub(crate) fn span(&self) -> Span {
        self.first.span()
    }
}

/// Walks from the outermost field to the base; `None` if something else is in the way.
fn collect(expr: &Expr, members: &mut Vec<Member>) -> Option<()> {
    match expr {
        Expr::Path(path) if path.qself.is_none() => {
            members.push(Member::Named(path.path.get_ident()?.clone()));
        }
        Expr::Field(field) => {
            collect(&field.base, members)?;
            members.push(field.member.clone());
        }
        Expr::Lit(literal) => match &literal.lit {
            Lit::Int(index) => members.push(unnamed(index.base10_digits(), index.span())?),
            // `0.1`, the second field of the first, reads as one number.
            Lit::Float(indices) => {
                for index in indices.base10_digits().split('.') {
                    members.push(unnamed(index, indices.span())?);
                }
            }
            _ => return None,
        },
        Expr::Paren(inner) => collect(&inner.expr, members)?,
        Expr::Group(inner) => collect(&inner.expr, members)?,
        _ => return None,
    }
    Some(())
}

fn unnamed(digits: &str, span: Span) -> Option<Member> {
    let index = digits.parse().ok()?;
    Some(Member::Unnamed(Index { index, span }))
}

/// The member as it is written in the source.
pub(crate) fn written(member: &Member) -> String {
    match member {
        Member::Named(name) => without_raw(name),
        Member::Unnamed(index) => index.index.to_string(),
    }
}

/// The name without `r#`.
pub(crate) fn without_raw(name: &Ident) -> String {
    use syn::ext::IdentExt;
    name.unraw().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Option<Vec<String>> {
        let expr = syn::parse_str(text).ok()?;
        let path = FieldPath::from_expr(&expr, "no path").ok()?;
        Some(path.members().map(written).collect())
    }

    #[test]
    fn fields_by_name_and_by_number() {
        let expect = |text, members: &[&str]| {
            let members = members.iter().map(ToString::to_string).collect();
            assert_eq!(path(text), Some(members), "{text}");
        };
        expect("order_id", &["order_id"]);
        expect("(order_id)", &["order_id"]);
        expect("customer.id", &["customer", "id"]);
        expect("r#type.id", &["type", "id"]);
        expect("0", &["0"]);
        expect("0.1", &["0", "1"]);
        expect("customer.0", &["customer", "0"]);
    }

    #[test]
    fn expressions_are_no_paths() {
        for text in [
            "Uuid::now_v7()",
            "order_id.to_string()",
            "a::b",
            "\"x\"",
            "&order_id",
            "(a, b)",
            "a[0]",
            "a + b",
            "self.order_id",
            "1e5",
            "1.5e3",
        ] {
            assert_eq!(path(text), None, "{text}");
        }
    }
}
