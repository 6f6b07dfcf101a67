//! Low watermarks: where claims and deliveries start to look.
//!
//! Index entries of deleted rows stay until vacuum removes them, and vacuum waits for the oldest
//! transaction of the whole database. A look that starts at the lowest key walks over all of them
//! each time; one that starts where the work was a few seconds ago does not. A row that a slow
//! commit makes visible below the mark is found by the next look from the start.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// A mark is used once it is at least this old, so that commits that take less are never missed.
const AGE: Duration = Duration::from_secs(5);

/// Highest position reached, by key, now and one to two generations ago.
#[derive(Debug)]
pub(crate) struct Watermarks<K, T>(Mutex<Generations<K, T>>);

#[derive(Debug)]
struct Generations<K, T> {
    since: Instant,
    current: HashMap<K, T>,
    settled: HashMap<K, T>,
}

impl<K, T> Default for Watermarks<K, T> {
    fn default() -> Self {
        Self(Mutex::new(Generations {
            since: Instant::now(),
            current: HashMap::new(),
            settled: HashMap::new(),
        }))
    }
}

impl<K: Hash + Eq + Clone, T: PartialOrd + Copy> Watermarks<K, T> {
    /// Where to start looking.
    pub(crate) fn get(&self, key: &K) -> Option<T> {
        let generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        generations.settled.get(key).copied()
    }

    /// Everything before this has been looked at.
    pub(crate) fn reached(&self, key: &K, position: T) {
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if generations.since.elapsed() >= AGE {
            generations.settled = std::mem::take(&mut generations.current);
            generations.since = Instant::now();
        }
        let highest = generations.current.entry(key.clone()).or_insert(position);
        if *highest < position {
            *highest = position;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_mark_is_used_only_when_it_has_settled() {
        let marks = Watermarks::default();
        marks.reached(&"a", 10);
        assert_eq!(marks.get(&"a"), None);
        tokio::time::advance(AGE).await;
        marks.reached(&"a", 20);
        assert_eq!(marks.get(&"a"), Some(10));
        tokio::time::advance(AGE).await;
        marks.reached(&"a", 15);
        assert_eq!(marks.get(&"a"), Some(20));
    }
}
