//! Names on the wire, and the name that somebody probably meant.

/// Longest name, in bytes; the same limit as `whizbang::MAX_NAME_BYTES`.
const MAX_NAME_BYTES: usize = 200;

/// Says why `name` cannot be a wire name, handler name or lane: the same rules as
/// `whizbang::name_fault`, which checks names that were not known at compile time.
pub(crate) fn fault(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        return Some("is empty");
    }
    if name.len() > MAX_NAME_BYTES {
        return Some("is longer than 200 bytes");
    }
    if name.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Some("contains white space or a control character");
    }
    None
}

/// The candidate that `name` is probably a slip of, if one is close enough.
pub(crate) fn closest<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let allowed = (name.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The names as a list for people.
pub(crate) fn quoted(names: impl IntoIterator<Item = impl std::fmt::Display>) -> String {
    let names = names.into_iter().map(|name| format!("`{name}`"));
    names.collect::<Vec<_>>().join(", ")
}

#[expect(
    clippy::indexing_slicing,
    reason = "each row is one longer than the word, and the loops end with it"
)]
/// How many characters must be inserted, removed, replaced or swapped with their neighbour.
fn distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<_>, Vec<_>) = (from.chars().collect(), to.chars().collect());
    let mut before_last = vec![0; to.len() + 1];
    let mut last: Vec<usize> = (0..=to.len()).collect();
    for i in 1..=from.len() {
        let mut current = vec![i; to.len() + 1];
        for j in 1..=to.len() {
            let replaced = last[j - 1] + usize::from(from[i - 1] != to[j - 1]);
            current[j] = replaced.min(last[j] + 1).min(current[j - 1] + 1);
            let swapped = i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1];
            if swapped {
                current[j] = current[j].min(before_last[j - 2] + 1);
            }
        }
        before_last = std::mem::replace(&mut last, current);
    }
    last[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised_and_strangers_are_not() {
        let options = ["name", "lane", "timeout", "max_attempts", "backoff"];
        assert_eq!(closest("timeuot", options), Some("timeout"));
        assert_eq!(closest("max_atempts", options), Some("max_attempts"));
        assert_eq!(closest("back_off", options), Some("backoff"));
        assert_eq!(closest("nam", options), Some("name"));
        assert_eq!(closest("priority", options), None);
        assert_eq!(closest("key", options), None);
    }

    #[test]
    fn distances_count_single_edits() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", "abc"), 0);
        assert_eq!(distance("acb", "abc"), 1);
        assert_eq!(distance("retry", "retries"), 3);
    }

    #[test]
    fn names_follow_the_rules_of_the_runtime() {
        assert_eq!(fault("orders.order_placed"), None);
        assert_eq!(fault(""), Some("is empty"));
        assert!(fault("two words").is_some());
        assert!(fault("line\nbreak").is_some());
        assert!(fault(&"x".repeat(200)).is_none());
        assert!(fault(&"x".repeat(201)).is_some());
    }
}
