//! The header `Idempotency-Key`.

use std::fmt;

use axum_core::extract::{FromRequestParts, OptionalFromRequestParts};
use http::{HeaderMap, request::Parts};

use super::Problem;
use crate::{KeyPart, MAX_KEY_BYTES};

/// The name of the header.
const NAME: &str = "idempotency-key";

/// What the client put into the header `Idempotency-Key`, as an extractor.
///
/// The IETF draft makes the value a quoted string (`"8e03978e-40d5"`); many clients send it bare
/// (`8e03978e-40d5`), which means the same. A request without the header is answered with 400;
/// take `Option<IdempotencyKey>` where it may be left out.
///
/// A key is only as unique as its clients are: if they do not trust each other, put the
/// authenticated client into the command's key as well, `key = (client_id, request_id)`.
///
/// ```
/// use whizbang::http::IdempotencyKey;
/// let quoted = IdempotencyKey::parse(r#""8e03978e-40d5""#)?;
/// assert_eq!(quoted, IdempotencyKey::parse("8e03978e-40d5")?);
/// assert_eq!(quoted.as_str(), "8e03978e-40d5");
/// assert!(IdempotencyKey::parse("two words").is_err());
/// # Ok::<_, whizbang::http::InvalidKey>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(String);

/// A header that holds no key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidKey {
    /// There are several headers.
    #[error("the header is there more than once")]
    Repeated,
    /// It is empty.
    #[error("the key is empty")]
    Empty,
    /// It is longer than [`MAX_KEY_BYTES`].
    #[error("the key is longer than {MAX_KEY_BYTES} bytes")]
    TooLong,
    /// It is neither a quoted string nor bare visible characters.
    #[error("the key is no string; write it in quotes, with visible ASCII characters and spaces")]
    NoString,
}

impl IdempotencyKey {
    /// Reads the value of the header.
    ///
    /// # Errors
    /// When it is no key.
    pub fn parse(value: &str) -> Result<Self, InvalidKey> {
        let value = value.trim_matches([' ', '\t']);
        let key = match value.strip_prefix('"') {
            Some(rest) => quoted(rest)?,
            None => bare(value)?,
        };
        match key.len() {
            0 => Err(InvalidKey::Empty),
            length if length > MAX_KEY_BYTES => Err(InvalidKey::TooLong),
            _ => Ok(Self(key)),
        }
    }

    /// The key without its quotes.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The key as a string of the command.
    pub fn into_string(self) -> String {
        self.0
    }

    /// The key of a request, if it has one.
    pub(super) fn of(headers: &HeaderMap) -> Result<Option<Self>, Problem> {
        let mut values = headers.get_all(NAME).iter();
        let Some(value) = values.next() else {
            return Ok(None);
        };
        let parsed = match (values.next(), value.to_str()) {
            (Some(_), _) => Err(InvalidKey::Repeated),
            (None, Err(_)) => Err(InvalidKey::NoString),
            (None, Ok(value)) => Self::parse(value),
        };
        parsed
            .map(Some)
            .map_err(|fault| Problem::invalid_key(&fault))
    }
}

/// The inside of a structured field's string; parameters may follow and are not ours.
fn quoted(rest: &str) -> Result<String, InvalidKey> {
    let mut key = String::with_capacity(rest.len());
    let mut characters = rest.chars();
    loop {
        match characters.next() {
            Some('"') => break,
            Some('\\') => match characters.next() {
                Some(escaped @ ('"' | '\\')) => key.push(escaped),
                _ => return Err(InvalidKey::NoString),
            },
            Some(character @ ' '..='~') => key.push(character),
            _ => return Err(InvalidKey::NoString),
        }
    }
    let after = characters.as_str().trim_start_matches(' ');
    match after.is_empty() || after.starts_with(';') {
        true => Ok(key),
        false => Err(InvalidKey::NoString),
    }
}

/// A key without quotes: no character that would have a meaning in a header.
fn bare(value: &str) -> Result<String, InvalidKey> {
    let visible = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b',' | b';' | b'\\');
    match value.bytes().all(visible) {
        true => Ok(value.to_owned()),
        false => Err(InvalidKey::NoString),
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl KeyPart for IdempotencyKey {
    fn key_part(&self) -> String {
        self.0.clone()
    }
}

impl<State: Sync> FromRequestParts<State> for IdempotencyKey {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &State) -> Result<Self, Problem> {
        Self::of(&parts.headers)?.ok_or_else(Problem::missing_key)
    }
}

impl<State: Sync> OptionalFromRequestParts<State> for IdempotencyKey {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &State) -> Result<Option<Self>, Problem> {
        Self::of(&parts.headers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(value: &str) -> Result<String, InvalidKey> {
        IdempotencyKey::parse(value).map(IdempotencyKey::into_string)
    }

    #[test]
    fn quoted_and_bare_keys_are_read() {
        for (value, key) in [
            (r#""8e03978e-40d5""#, "8e03978e-40d5"),
            ("8e03978e-40d5", "8e03978e-40d5"),
            (" \t\"a b\" ", "a b"),
            (r#""a\"b\\c""#, r#"a"b\c"#),
            (r#""a";v=1"#, "a"),
            (r#""a" ;v"#, "a"),
            ("a:b/c=d_e~", "a:b/c=d_e~"),
        ] {
            assert_eq!(parsed(value).as_deref(), Ok(key), "{value}");
        }
    }

    #[test]
    fn what_is_no_key_is_refused() {
        for value in [
            "\"a",
            "\"a\\",
            "\"a\\n\"",
            "\"a\"b",
            "a b",
            "a,b",
            "a;b",
            "a\"",
            "é",
            "\"\u{1}\"",
            "\"é\"",
        ] {
            assert_eq!(parsed(value), Err(InvalidKey::NoString), "{value}");
        }
        for value in ["", "  ", "\"\""] {
            assert_eq!(parsed(value), Err(InvalidKey::Empty), "{value}");
        }
        let long = "k".repeat(MAX_KEY_BYTES);
        assert!(parsed(&long).is_ok());
        assert_eq!(parsed(&format!("{long}k")), Err(InvalidKey::TooLong));
    }
}
