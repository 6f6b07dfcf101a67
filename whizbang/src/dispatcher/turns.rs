//! The queue of one key in one process: repeats wait here and not on connections.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::store::{CommandAnswer, CommandRun};

/// Executions under way in this process.
pub(super) type Executions = Mutex<Turns>;
/// One place for each scope and key at work.
type Turns = HashMap<(String, String), Arc<Place>>;
/// Held by whoever works on the key; holds what it came to, for those who wait.
type Place = tokio::sync::Mutex<Option<Settled>>;

/// A committed answer. It lives for as long as somebody waits, so nothing piles up.
#[derive(Debug, Clone)]
pub(super) struct Settled {
    pub(super) fingerprint: [u8; 32],
    pub(super) answer: CommandAnswer,
}

/// A place in the queue of one key.
pub(super) struct Turn<'a> {
    pub(super) place: Arc<Place>,
    executions: &'a Executions,
    key: (String, String),
}

impl<'a> Turn<'a> {
    pub(super) fn of(executions: &'a Executions, run: &CommandRun) -> Self {
        let key = (run.scope.clone(), run.key.as_str().to_owned());
        let place = Arc::clone(lock(executions).entry(key.clone()).or_default());
        Self {
            place,
            executions,
            key,
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut executions = lock(self.executions);
        // The map's and this turn's: nobody else waits for the key.
        if Arc::strong_count(&self.place) <= 2 {
            executions.remove(&self.key);
        }
    }
}

fn lock(executions: &Executions) -> MutexGuard<'_, Turns> {
    // Nothing that can panic runs under the lock.
    executions.lock().unwrap_or_else(PoisonError::into_inner)
}
