//! Keys of idempotent commands.

use uuid::Uuid;

/// Longest key, in bytes of its text.
pub const MAX_KEY_BYTES: usize = 1000;

/// What makes two requests the same request.
///
/// One field is stored as its plain text; several fields as a JSON array, so that `("a", "bc")`
/// and `("ab", "c")` differ. Strings are compared byte by byte: no Unicode normalisation, no case
/// folding, no trimming. A client that writes `é` once as one character and once as two makes two
/// requests. The text of the whole key has at most [`MAX_KEY_BYTES`] bytes.
///
/// ```
/// use whizbang::{AsCommandKey, CommandKey};
/// let one = ("a", "bc").command_key().unwrap();
/// let other = ("ab", "c").command_key().unwrap();
/// assert_ne!(one, other);
/// assert_eq!("order-7".command_key().unwrap().as_str(), "order-7");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CommandKey(String);

impl CommandKey {
    /// The text that `wh_command_results.key` holds.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A key that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Longer than [`MAX_KEY_BYTES`].
    #[error("the key has {size} bytes, the limit is 1000; use a shorter id")]
    TooLong {
        /// Size in bytes.
        size: usize,
    },
    /// An empty string says nothing about which request it is.
    #[error("the key is empty; the client must choose one and repeat it with every retry")]
    Empty,
    /// A NUL character, which PostgreSQL cannot store.
    #[error("the key contains a NUL character")]
    Nul,
}

/// One field of a key.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be part of a command key",
    label = "a key is made of `Uuid`s, integers and strings",
    note = "for a type of your own, implement `whizbang::KeyPart`"
)]
pub trait KeyPart {
    /// The text that stands for the value; equal text means the same request.
    fn key_part(&self) -> String;
    /// Whether the value is an integer, which a composite key writes without quotes.
    fn is_number(&self) -> bool {
        false
    }
}

macro_rules! number_key_part {
    ($($integer:ty),*) => {$(
        impl KeyPart for $integer {
            fn key_part(&self) -> String {
                self.to_string()
            }
            fn is_number(&self) -> bool {
                true
            }
        }
    )*};
}
number_key_part!(
    i8, i16, i32, i64, i128, u8, u16, u32, u64, u128, isize, usize
);

impl KeyPart for Uuid {
    fn key_part(&self) -> String {
        self.to_string()
    }
}

impl KeyPart for str {
    fn key_part(&self) -> String {
        self.to_owned()
    }
}

impl KeyPart for String {
    fn key_part(&self) -> String {
        self.clone()
    }
}

impl<T: KeyPart + ?Sized> KeyPart for &T {
    fn key_part(&self) -> String {
        (**self).key_part()
    }
    fn is_number(&self) -> bool {
        (**self).is_number()
    }
}

/// A whole key: one part, or a tuple of parts.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a command key",
    label = "a key is a `Uuid`, an integer, a string, or a tuple of these",
    note = "for a type of your own, implement `whizbang::KeyPart`"
)]
pub trait AsCommandKey {
    /// The key.
    ///
    /// # Errors
    /// When it is empty, too long or holds a NUL character.
    fn command_key(&self) -> Result<CommandKey, KeyError>;
}

impl<T: KeyPart> AsCommandKey for T {
    fn command_key(&self) -> Result<CommandKey, KeyError> {
        checked(self.key_part())
    }
}

fn checked(text: String) -> Result<CommandKey, KeyError> {
    if text.is_empty() {
        return Err(KeyError::Empty);
    }
    if text.len() > MAX_KEY_BYTES {
        return Err(KeyError::TooLong { size: text.len() });
    }
    if text.contains('\0') {
        return Err(KeyError::Nul);
    }
    Ok(CommandKey(text))
}

fn joined(parts: &[&dyn KeyPart]) -> Result<CommandKey, KeyError> {
    let mut values = Vec::with_capacity(parts.len());
    for part in parts {
        let text = part.key_part();
        checked(text.clone())?;
        values.push(if part.is_number() && is_integer(&text) {
            text
        } else {
            serde_json::Value::String(text).to_string()
        });
    }
    checked(format!("[{}]", values.join(",")))
}

/// What stands in a composite key without quotes cannot hold a comma or a bracket, whatever a
/// part of the user's own says about itself.
fn is_integer(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

macro_rules! tuple_command_key {
    ($($part:ident $index:tt),*) => {
        impl<$($part: KeyPart),*> AsCommandKey for ($($part,)*) {
            fn command_key(&self) -> Result<CommandKey, KeyError> {
                joined(&[$(&self.$index),*])
            }
        }
    };
}
tuple_command_key!(A 0);
tuple_command_key!(A 0, B 1);
tuple_command_key!(A 0, B 1, C 2);
tuple_command_key!(A 0, B 1, C 2, D 3);

#[cfg(test)]
mod tests {
    use super::*;

    fn text(key: &impl AsCommandKey) -> String {
        key.command_key().expect("a key").as_str().to_owned()
    }

    #[test]
    fn each_kind_of_key_has_one_text() {
        let id = Uuid::from_u128(7);
        assert_eq!(text(&id), "00000000-0000-0000-0000-000000000007");
        assert_eq!(text(&-7_i64), "-7");
        assert_eq!(text(&"A b"), "A b");
        assert_eq!(
            text(&("t".to_owned(), 7_u32, id)),
            format!(r#"["t",7,"{id}"]"#)
        );
        assert_ne!(text(&("7",)), text(&(7,)));
        assert_ne!(text(&("\u{e9}", 1)), text(&("e\u{301}", 1)));
    }

    #[test]
    fn parts_never_run_into_each_other() {
        let parts = [
            "a", "b", "ab", ",", "\"", "\",\"", "\\", "\\\"", "]", "[", "a\",\"b", "1", "1,2",
        ];
        let mut seen = std::collections::HashSet::new();
        for one in parts {
            for two in parts {
                assert!(seen.insert(text(&(one, two))), "{one:?} {two:?}");
                for three in parts {
                    let key = text(&(one, two, three));
                    assert!(seen.insert(key), "{one:?} {two:?} {three:?}");
                }
            }
        }
    }

    #[test]
    fn a_part_that_lies_about_being_a_number_is_quoted() {
        struct Liar(&'static str);
        impl KeyPart for Liar {
            fn key_part(&self) -> String {
                self.0.to_owned()
            }
            fn is_number(&self) -> bool {
                true
            }
        }
        assert_ne!(text(&(Liar("1,2"), 3)), text(&(1, Liar("2,3"))));
        assert_eq!(text(&(Liar("1,2"), 3)), r#"["1,2",3]"#);
    }

    #[test]
    fn what_cannot_be_a_key_says_why() {
        assert_eq!("".command_key(), Err(KeyError::Empty));
        assert_eq!(("a", "").command_key(), Err(KeyError::Empty));
        assert_eq!("a\0".command_key(), Err(KeyError::Nul));
        assert_eq!(("a\0", 1).command_key(), Err(KeyError::Nul));
        // In bytes, not in characters.
        let longest = "\u{e9}".repeat(MAX_KEY_BYTES / 2);
        assert!(longest.command_key().is_ok());
        let longer = format!("{longest}x");
        let size = MAX_KEY_BYTES + 1;
        assert_eq!(longer.command_key(), Err(KeyError::TooLong { size }));
        // Each fits, both together do not.
        let half = "k".repeat(MAX_KEY_BYTES / 2);
        assert!(matches!(
            (half.as_str(), half.as_str()).command_key(),
            Err(KeyError::TooLong { .. })
        ));
    }
}
