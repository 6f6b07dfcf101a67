//! How long to wait between attempts.

use std::time::Duration;

use rand::{Rng, RngExt};

/// Exponential backoff with full jitter: a random wait between nothing and
/// `min(longest, shortest · 2^(attempt − 1))`.
///
/// Full jitter spreads the retries of many messages that failed together; see "Exponential
/// Backoff And Jitter", AWS Architecture Blog, 2015.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// Ceiling of the first wait.
    pub shortest: Duration,
    /// Ceiling of all waits.
    pub longest: Duration,
}

impl Backoff {
    /// A backoff between these two ceilings.
    pub const fn new(shortest: Duration, longest: Duration) -> Self {
        Self { shortest, longest }
    }

    /// The ceiling of the wait after this many failed attempts. Never overflows.
    ///
    /// ```
    /// use std::time::Duration;
    /// use whizbang::Backoff;
    /// let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));
    /// assert_eq!(backoff.ceiling(1), Duration::from_secs(1));
    /// assert_eq!(backoff.ceiling(4), Duration::from_secs(8));
    /// assert_eq!(backoff.ceiling(u32::MAX), Duration::from_secs(300));
    /// ```
    pub fn ceiling(&self, failed_attempts: u32) -> Duration {
        let doublings = failed_attempts.saturating_sub(1).min(63);
        let factor = 1u64.checked_shl(doublings).unwrap_or(u64::MAX);
        let millis = u64::try_from(self.shortest.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(millis.saturating_mul(factor)).min(self.longest)
    }

    /// A random wait after this many failed attempts.
    pub fn wait(&self, failed_attempts: u32, random: &mut impl Rng) -> Duration {
        self.ceiling(failed_attempts)
            .mul_f64(random.random_range(0.0..=1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{SeedableRng, rngs::StdRng};

    #[test]
    fn a_wait_never_passes_its_ceiling() {
        let backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(60));
        let mut random = StdRng::seed_from_u64(7);
        for attempt in [0, 1, 2, 5, 10, 64, 1_000, u32::MAX] {
            for _ in 0..200 {
                assert!(backoff.wait(attempt, &mut random) <= backoff.ceiling(attempt));
            }
            assert!(backoff.ceiling(attempt) <= backoff.longest);
        }
    }
}
