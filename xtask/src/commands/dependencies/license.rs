//! License expressions of crates: what of them is enough.

/// Whether an SPDX expression can be fulfilled with these licenses alone.
///
/// Old crates write `/` for `OR`.
pub(super) fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut words = words.as_slice();
    let holds = any_of(&mut words, allowed);
    // What is left was not understood.
    holds && words.is_empty()
}

fn any_of(words: &mut &[&str], allowed: &[String]) -> bool {
    let mut holds = all_of(words, allowed);
    while let [first, rest @ ..] = *words
        && *first == "OR"
    {
        *words = rest;
        holds |= all_of(words, allowed);
    }
    holds
}

fn all_of(words: &mut &[&str], allowed: &[String]) -> bool {
    let mut holds = one(words, allowed);
    while let [first, rest @ ..] = *words
        && *first == "AND"
    {
        *words = rest;
        holds &= one(words, allowed);
    }
    holds
}

fn one(words: &mut &[&str], allowed: &[String]) -> bool {
    match *words {
        ["(", rest @ ..] => {
            *words = rest;
            let holds = any_of(words, allowed);
            let [")", rest @ ..] = *words else {
                return false;
            };
            *words = rest;
            holds
        }
        [license, "WITH", exception, rest @ ..] => {
            *words = rest;
            allowed.contains(&format!("{license} WITH {exception}"))
        }
        [license, rest @ ..] => {
            *words = rest;
            allowed.iter().any(|allowed| allowed == license)
        }
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::is_allowed;

    #[test]
    fn expressions_hold_as_they_are_written() {
        let allowed = ["MIT", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned);
        let holds = |expression| is_allowed(expression, &allowed);
        for good in [
            "MIT",
            "Apache-2.0 OR MIT",
            "MIT/Apache-2.0",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-3.0",
            "GPL-3.0 AND BSL-1.0 OR MIT",
        ] {
            assert!(holds(good), "{good}");
        }
        for bad in [
            "",
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "Apache-2.0",
            "(MIT OR Apache-2.0) AND GPL-3.0",
            "MIT MIT",
            "(MIT",
        ] {
            assert!(!holds(bad), "{bad}");
        }
    }
}
