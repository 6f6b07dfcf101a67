//! Dice: one for each part of a simulation, so that parts do not disturb each other.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};

/// A source of chance that can be shared.
#[derive(Debug)]
pub(crate) struct Dice(Mutex<StdRng>);

impl Dice {
    /// Dice of a part of the simulation of this seed.
    pub(crate) fn new(seed: u64, part: u64) -> Self {
        // Any mixing will do that keeps parts of one seed and seeds of one part apart.
        let mixed = seed
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add(part.wrapping_mul(0xbf58_476d_1ce4_e5b9));
        Self(Mutex::new(StdRng::seed_from_u64(mixed)))
    }

    fn lock(&self) -> MutexGuard<'_, StdRng> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number below `end`, which must not be 0.
    pub(crate) fn below(&self, end: u64) -> u64 {
        self.lock().random_range(0..end)
    }

    /// A number from 0 to 1.
    pub(crate) fn part(&self) -> f64 {
        self.lock().random_range(0.0..1.0)
    }

    /// Whether something happens that happens in `chance` of all cases.
    pub(crate) fn happens(&self, chance: f64) -> bool {
        self.lock().random_bool(chance.clamp(0.0, 1.0))
    }

    /// A time between two.
    pub(crate) fn millis(&self, shortest: u64, longest: u64) -> Duration {
        Duration::from_millis(self.lock().random_range(shortest..=longest))
    }

    /// One of these.
    pub(crate) fn pick<'a, T>(&self, of: &'a [T]) -> &'a T {
        let place = self.lock().random_range(0..of.len());
        &of[place]
    }
}
