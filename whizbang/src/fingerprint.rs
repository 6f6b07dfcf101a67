//! What makes two payloads the same payload: a hash of the canonical form of their JSON.
//!
//! The form is written here and nowhere else, and the hashes are stored: changing it would turn
//! every repeat of an older command into a reused key. It takes nothing from the settings of other
//! libraries, so it is the same in every program.
//!
//! - Members are sorted by name; white space is gone.
//! - A member that is `null` counts like one that is not there, so that a sender who has learnt of
//!   a new optional field and leaves it empty still repeats its older request.
//! - Numbers are compared by value, however long: `1`, `1.0` and `10e-1` are one number.
//! - Strings are compared character by character, however they are escaped.

use sha2::{Digest, Sha256};

/// Deeper nesting is hashed as it stands.
const DEEPEST: usize = 128;

/// The hash of a JSON text. Text that is not JSON is hashed as it stands.
pub(crate) fn fingerprint(text: &str) -> [u8; 32] {
    match canonical(text) {
        Some(form) => Sha256::digest(form).into(),
        None => Sha256::digest(text).into(),
    }
}

fn canonical(text: &str) -> Option<String> {
    let mut reader = Reader { rest: text };
    let mut form = String::with_capacity(text.len());
    reader.value(&mut form, 0)?;
    reader.skip_space();
    reader.rest.is_empty().then_some(form)
}

struct Reader<'t> {
    rest: &'t str,
}

impl<'t> Reader<'t> {
    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
    }

    /// Takes this character, after white space.
    fn take(&mut self, wanted: char) -> bool {
        self.skip_space();
        match self.rest.strip_prefix(wanted) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn split(&mut self, length: usize) -> Option<&'t str> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    fn value(&mut self, form: &mut String, depth: usize) -> Option<()> {
        self.skip_space();
        match self.rest.bytes().next()? {
            _ if depth > DEEPEST => None,
            b'{' => self.object(form, depth),
            b'[' => self.array(form, depth),
            b'"' => {
                form.push_str(&self.string()?);
                Some(())
            }
            _ => {
                let end = self.rest.find([',', ']', '}', ' ', '\t', '\n', '\r']);
                let word = self.split(end.unwrap_or(self.rest.len()))?;
                match word {
                    "true" | "false" | "null" => form.push_str(word),
                    number => form.push_str(&canonical_number(number)?),
                }
                Some(())
            }
        }
    }

    fn object(&mut self, form: &mut String, depth: usize) -> Option<()> {
        self.take('{');
        let mut members = Vec::new();
        if !self.take('}') {
            loop {
                self.skip_space();
                let mut member = self.string()?;
                let name = member.len();
                self.take(':').then_some(())?;
                member.push(':');
                self.value(&mut member, depth + 1)?;
                if !member.ends_with(":null") {
                    members.push((name, member));
                }
                if self.take('}') {
                    break;
                }
                self.take(',').then_some(())?;
            }
        }
        // By name alone and stable, so that a repeated name keeps its order.
        members.sort_by(|(one, a), (other, b)| a.get(..*one).cmp(&b.get(..*other)));
        form.push('{');
        for (_, member) in members {
            form.push_str(&member);
            form.push(',');
        }
        form.push('}');
        Some(())
    }

    fn array(&mut self, form: &mut String, depth: usize) -> Option<()> {
        self.take('[');
        form.push('[');
        if !self.take(']') {
            loop {
                self.value(form, depth + 1)?;
                form.push(',');
                if self.take(']') {
                    break;
                }
                self.take(',').then_some(())?;
            }
        }
        form.push(']');
        Some(())
    }

    /// A string in the one way of writing it; one with a lone surrogate as it was written.
    fn string(&mut self) -> Option<String> {
        let inside = self.rest.strip_prefix('"')?;
        let mut escaped = false;
        let end = inside.bytes().position(|byte| {
            let ends = byte == b'"' && !escaped;
            escaped = byte == b'\\' && !escaped;
            ends
        })?;
        let written = self.split(end + 2)?;
        match serde_json::from_str::<String>(written) {
            Ok(text) => serde_json::to_string(&text).ok(),
            Err(_) => Some(written.to_owned()),
        }
    }
}

/// A number as sign, digits without zeros at either end, and a power of ten.
fn canonical_number(text: &str) -> Option<String> {
    let (sign, unsigned) = match text.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", text),
    };
    let (mantissa, power) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, power)) => (mantissa, power.parse::<i64>().ok()?),
        None => (unsigned, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let significant = digits.trim_end_matches('0');
    let zeros = digits.len() - significant.len();
    let significant = significant.trim_start_matches('0');
    if significant.is_empty() {
        return Some("0".to_owned());
    }
    let shift = i64::try_from(zeros).ok()? - i64::try_from(fraction.len()).ok()?;
    let power = power.checked_add(shift)?;
    Some(format!("{sign}{significant}e{power}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(one: &str, other: &str) {
        assert_eq!(canonical(one), canonical(other), "{one} and {other}");
        assert!(canonical(one).is_some(), "{one}");
    }

    fn different(one: &str, other: &str) {
        assert_ne!(fingerprint(one), fingerprint(other), "{one} and {other}");
    }

    #[test]
    fn the_order_of_members_and_white_space_do_not_count() {
        same(
            r#"{"a":1,"b":{"c":[1,2],"d":"x"}}"#,
            " {\n\"b\" : { \"d\":\"x\", \"c\" : [ 1 ,2 ] } , \"a\":1 }\t",
        );
        different("[1,2]", "[2,1]");
        different(r#"{"a":1}"#, r#"{"b":1}"#);
        different(r#"{"a":{"b":1}}"#, r#"{"a":{},"b":1}"#);
    }

    #[test]
    fn an_empty_optional_field_counts_like_none() {
        same(r#"{"a":1,"note":null}"#, r#"{"a":1}"#);
        same(r#"{"a":{"note":null}}"#, r#"{"a":{}}"#);
        different(r#"{"a":[null]}"#, r#"{"a":[]}"#);
        different(r#"{"a":"null"}"#, r#"{}"#);
        different(r#"{"a:null":1}"#, r#"{"a":null}"#);
        different(r#"{"a":":null"}"#, r#"{}"#);
    }

    #[test]
    fn numbers_are_compared_by_value_and_never_rounded() {
        for number in ["1", "1.0", "10e-1", "0.1E1", "1.000e+0"] {
            same("1", number);
        }
        same("-0.0", "0");
        same("1200", "12e2");
        different("1", "-1");
        different("10", "100");
        different("0.1", "0.01");
        different("9007199254740993", "9007199254740992");
        different("18446744073709551617", "18446744073709551618");
        different("1e400", "1e401");
        different("1", "\"1\"");
    }

    #[test]
    fn strings_are_compared_by_character() {
        same(r#""\u0041\/\u00e9""#, "\"A/é\"");
        different("\"é\"", "\"e\u{301}\"");
        different(r#""\u0000""#, r#""""#);
        same(r#""a\"b\\""#, r#""a\u0022b\u005c""#);
        // Valid for PostgreSQL's `json`, and for no string of Rust.
        different(r#"{"a":"\ud800"}"#, r#"{"a":"\ud801"}"#);
        same(r#"{"a":"\ud800","b":1}"#, r#"{"b":1,"a":"\ud800"}"#);
    }

    #[test]
    fn what_is_no_json_is_hashed_as_it_stands() {
        for text in [
            "",
            "{",
            "[1",
            "{\"a\" 1}",
            "1 2",
            "tru",
            "--1",
            "1e",
            "\"a",
            "{a:1}",
        ] {
            assert_eq!(canonical(text), None, "{text}");
        }
        let deep = "[".repeat(300) + &"]".repeat(300);
        assert_eq!(canonical(&deep), None);
        different(&deep, &format!(" {deep}"));
    }

    #[test]
    fn the_form_never_changes() {
        let text = r#"{"order_id":"7","items":[{"sku":"tea","n":2.50}],"note":null}"#;
        let hash = fingerprint(text).map(|byte| format!("{byte:02x}")).concat();
        assert_eq!(
            canonical(text).as_deref(),
            Some(r#"{"items":[{"n":25e-1,"sku":"tea",},],"order_id":"7",}"#)
        );
        assert_eq!(
            hash,
            "8c1a51ce2474a9b005df9a1959622b1a7f25d9abd10ab642de45c7f3afc706cc"
        );
    }
}
