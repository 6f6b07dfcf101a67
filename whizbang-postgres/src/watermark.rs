//! Low watermarks: where claims and deliveries start to look.
//!
//! Index entries of deleted rows stay until vacuum removes them, and vacuum waits for the oldest
//! transaction of the whole database. A look that starts at the lowest key walks over all of them
//! each time; one that starts where the work was a few seconds ago does not. Where users' own
//! transactions write the rows, a mark counts only when every transaction has ended that was running
//! when it was noted: one of them could make a row visible below it, behind a later one of its stream.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// A mark is used once it is at least this old, so that our own short commits are never missed.
const AGE: Duration = Duration::from_secs(5);

/// Which transactions were running at a look, by their ids.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Running {
    /// None below this one.
    pub(crate) oldest: i64,
    /// None from this one on.
    pub(crate) next: i64,
}

/// Highest position reached, by key, now and some time ago.
#[derive(Debug)]
pub(crate) struct Watermarks<K, T>(Mutex<Generations<K, T>>);

#[derive(Debug)]
struct Generations<K, T> {
    since: Instant,
    current: HashMap<K, T>,
    /// Waits until all transactions below this id have ended.
    pending: Option<(i64, HashMap<K, T>)>,
    settled: HashMap<K, T>,
}

impl<K, T> Default for Watermarks<K, T> {
    fn default() -> Self {
        Self(Mutex::new(Generations {
            since: Instant::now(),
            current: HashMap::new(),
            pending: None,
            settled: HashMap::new(),
        }))
    }
}

impl<K, T> Generations<K, T> {
    fn settle(&mut self, running: Running) {
        match self.pending.take() {
            Some((until, marks)) if running.oldest >= until => self.settled = marks,
            pending => self.pending = pending,
        }
    }
}

impl<K: Hash + Eq + Clone, T: PartialOrd + Copy> Watermarks<K, T> {
    /// Where to start looking.
    pub(crate) fn get(&self, key: &K) -> Option<T> {
        let generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        generations.settled.get(key).copied()
    }

    /// Everything before this has been looked at, while these transactions were running; by default
    /// none that matters.
    pub(crate) fn reached(&self, key: &K, position: T, running: Running) {
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        generations.settle(running);
        if generations.since.elapsed() >= AGE && generations.pending.is_none() {
            let marks = std::mem::take(&mut generations.current);
            generations.pending = Some((running.next, marks));
            generations.since = Instant::now();
            generations.settle(running);
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

    const NOBODY: Running = Running { oldest: 0, next: 0 };

    #[tokio::test(start_paused = true)]
    async fn a_mark_is_used_only_when_it_has_settled() {
        let marks = Watermarks::default();
        marks.reached(&"a", 10, NOBODY);
        assert_eq!(marks.get(&"a"), None);
        tokio::time::advance(AGE).await;
        marks.reached(&"a", 20, NOBODY);
        assert_eq!(marks.get(&"a"), Some(10));
        tokio::time::advance(AGE).await;
        marks.reached(&"a", 15, NOBODY);
        assert_eq!(marks.get(&"a"), Some(20));
    }

    #[tokio::test(start_paused = true)]
    async fn a_mark_waits_for_transactions_that_were_running() {
        let marks = Watermarks::default();
        let running = |oldest, next| Running { oldest, next };
        marks.reached(&"a", 10, running(7, 9));
        tokio::time::advance(AGE).await;
        marks.reached(&"a", 20, running(7, 12));
        tokio::time::advance(AGE * 10).await;
        marks.reached(&"a", 30, running(7, 30));
        assert_eq!(marks.get(&"a"), None, "number 7 is still running");
        marks.reached(&"a", 40, running(25, 40));
        assert_eq!(marks.get(&"a"), Some(10));
    }
}
