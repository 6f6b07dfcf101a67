//! How many rows this process may hold, in all and for each handler.
//!
//! Rows that wait in a process cannot be taken by another one, and a claim of few rows costs as much
//! as one of many. So a process holds a batch, and more only while it works batches off in no time.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::store::Room;

/// A batch that is claimed and worked off within this time is too small.
const FAST: Duration = Duration::from_millis(100);
/// A batch that takes longer is large enough for the start.
const SLOW: Duration = Duration::from_secs(1);
/// How many times the batch grows at most.
const GROWTH: usize = 10;

#[derive(Default)]
struct Taken {
    total: usize,
    by_handler: HashMap<&'static str, usize>,
}

/// Rows held or reserved; the worker, the consumers and the relay take from it.
pub(crate) struct Capacity {
    batch: usize,
    /// Between one batch and `GROWTH` of them.
    limit: AtomicUsize,
    taken: Mutex<Taken>,
}

/// One handler's share of what may be leased.
pub(crate) struct Share {
    pub(crate) handler: &'static str,
    pub(crate) lane: &'static str,
    pub(crate) limit: usize,
}

impl Capacity {
    pub(crate) fn new(batch: usize) -> Arc<Self> {
        Arc::new(Self {
            batch,
            limit: AtomicUsize::new(batch),
            taken: Mutex::default(),
        })
    }

    /// Rows that may be held at once.
    pub(crate) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Learns how long a full claim took until there was room for another one.
    pub(crate) fn worked_off(&self, time: Duration) {
        let limit = self.limit();
        let next = if time < FAST {
            (limit * 2).min(self.batch * GROWTH)
        } else if time > SLOW {
            self.batch
        } else {
            limit
        };
        self.limit.store(next, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        // Nothing that can panic runs under the lock.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rows held or reserved.
    pub(crate) fn taken(&self) -> usize {
        self.lock().total
    }

    /// Free rows in all.
    pub(crate) fn free(&self) -> usize {
        self.limit().saturating_sub(self.lock().total)
    }

    /// What each share has left, given what is held; shares without room are left out.
    pub(crate) fn room(&self, shares: impl IntoIterator<Item = Share>) -> Vec<Room> {
        let taken = self.lock();
        let free = self.limit().saturating_sub(taken.total);
        shares
            .into_iter()
            .filter_map(|share| {
                let held = taken.by_handler.get(share.handler).copied().unwrap_or(0);
                let limit = share.limit.saturating_sub(held).min(free);
                (limit > 0).then(|| Room {
                    handler: share.handler.to_owned(),
                    lane: share.lane.to_owned(),
                    limit,
                })
            })
            .collect()
    }

    /// Counts a row of this handler as held until the guard is dropped.
    pub(crate) fn hold(self: &Arc<Self>, handler: &'static str) -> Slot {
        let mut taken = self.lock();
        taken.total += 1;
        *taken.by_handler.entry(handler).or_default() += 1;
        Slot {
            capacity: Arc::clone(self),
            handler,
        }
    }
}

/// One held row.
pub(crate) struct Slot {
    capacity: Arc<Capacity>,
    handler: &'static str,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = self.capacity.lock();
        taken.total = taken.total.saturating_sub(1);
        if let Some(held) = taken.by_handler.get_mut(self.handler) {
            *held = held.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Capacity;

    #[test]
    fn batches_grow_while_they_are_worked_off_in_no_time() {
        let capacity = Capacity::new(100);
        let quick = Duration::from_millis(5);
        let limits: Vec<_> = (0..5)
            .map(|_| {
                capacity.worked_off(quick);
                capacity.limit()
            })
            .collect();
        assert_eq!(limits, [200, 400, 800, 1000, 1000]);
        capacity.worked_off(Duration::from_millis(500));
        assert_eq!(capacity.limit(), 1000);
        capacity.worked_off(Duration::from_secs(2));
        assert_eq!(capacity.limit(), 100);
    }
}
