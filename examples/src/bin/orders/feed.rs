//! Which line is delivered when, and how often.

use rand::{rngs::StdRng, seq::SliceRandom};

/// Lines that are shuffled among each other. A window is safe in the inbox before the next one
/// begins, so of two lines that contradict each other and lie further apart than this, the first
/// one counts.
const WINDOW: usize = 100;

/// Line numbers in the order of their deliveries, one list for each window.
pub(crate) fn plan(lines: usize, deliveries: usize, random: &mut StdRng) -> Vec<Vec<usize>> {
    let all: Vec<usize> = (0..lines).collect();
    let windows = all.chunks(WINDOW).map(|window| {
        let mut order = window.repeat(deliveries);
        order.shuffle(random);
        order
    });
    windows.collect()
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn every_line_is_delivered_as_often_as_asked_for_within_its_window() {
        let plan = plan(250, 3, &mut StdRng::seed_from_u64(1));
        assert_eq!(plan.len(), 3);
        for (number, window) in plan.iter().enumerate() {
            let mut sorted = window.clone();
            sorted.sort_unstable();
            let first = number * WINDOW;
            let expected: Vec<_> = (first..(first + WINDOW).min(250))
                .flat_map(|line| [line; 3])
                .collect();
            assert_eq!(sorted, expected);
            assert_ne!(*window, expected, "shuffled");
        }
    }
}
