//! Durations in attributes: `"250ms"`, `"30s"`, `"5m"`, `"1h"`, and ranges of them.

use proc_macro2::TokenStream;
use quote::quote;

/// Longest duration: PostgreSQL counts a statement timeout in milliseconds of 31 bits, about 24
/// days.
const MAX_HOURS: u64 = 480;

/// A duration of the source text, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Millis(u64);

impl Millis {
    /// Reads one duration; the error is the end of a sentence that begins with the option.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let digits = text.chars().take_while(char::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let factor = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => {
                return Err(format!(
                    "takes durations such as `250ms`, `30s`, `5m` or `1h`, not `{text}`"
                ));
            }
        };
        if number.is_empty() {
            return Err(format!(
                "takes a whole number before the unit, not `{text}`"
            ));
        }
        match number
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(factor))
        {
            Some(0) => Err(format!("takes a duration above zero, not `{text}`")),
            Some(millis) if millis <= MAX_HOURS * 3_600_000 => Ok(Self(millis)),
            _ => Err(format!("takes at most {MAX_HOURS}h, not `{text}`")),
        }
    }

    /// Reads `shortest..longest`.
    pub(crate) fn parse_range(text: &str) -> Result<(Self, Self), String> {
        let Some((shortest, longest)) = text.split_once("..") else {
            return Err(format!(
                "takes a range of durations such as `1s..5m`, not `{text}`"
            ));
        };
        let (shortest, longest) = (Self::parse(shortest)?, Self::parse(longest)?);
        if shortest > longest {
            return Err(format!("takes the shorter wait first, not `{text}`"));
        }
        Ok((shortest, longest))
    }

    /// A constant expression of type `Duration`.
    pub(crate) fn expand(self) -> TokenStream {
        let millis = self.0;
        quote!(::core::time::Duration::from_millis(#millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_number_and_a_unit() {
        assert_eq!(Millis::parse("250ms"), Ok(Millis(250)));
        assert_eq!(Millis::parse("30s"), Ok(Millis(30_000)));
        assert_eq!(Millis::parse("5m"), Ok(Millis(300_000)));
        assert_eq!(Millis::parse("1h"), Ok(Millis(3_600_000)));
        assert_eq!(Millis::parse("480h"), Ok(Millis(480 * 3_600_000)));
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "5",
            "s",
            "5 s",
            "-5s",
            "+5s",
            "1.5s",
            "5d",
            "5 parsecs",
            "0s",
            "481h",
        ] {
            assert!(Millis::parse(text).is_err(), "{text}");
        }
        assert!(Millis::parse("99999999999999999999s").is_err());
        assert!(Millis::parse("18446744073709551615h").is_err());
    }

    #[test]
    fn ranges_go_upwards() {
        let second_to_minute = (Millis(1_000), Millis(60_000));
        assert_eq!(Millis::parse_range("1s..1m"), Ok(second_to_minute));
        assert_eq!(
            Millis::parse_range("1s..1s"),
            Ok((Millis(1_000), Millis(1_000)))
        );
        for text in [
            "1s", "..1s", "1s..", "1m..1s", "1s...2s", "1s..=2s", "1s .. 2s",
        ] {
            assert!(Millis::parse_range(text).is_err(), "{text}");
        }
    }
}
