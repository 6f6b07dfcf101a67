//! How many rows this process may hold, in all and for each handler.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::store::Room;

#[derive(Default)]
struct Taken {
    total: usize,
    by_handler: HashMap<&'static str, usize>,
}

/// Rows held or reserved; the worker, the consumers and the relay take from it.
pub(crate) struct Capacity {
    limit: usize,
    taken: Mutex<Taken>,
}

/// One handler's share of what may be leased.
pub(crate) struct Share {
    pub(crate) handler: &'static str,
    pub(crate) lane: &'static str,
    pub(crate) limit: usize,
}

impl Capacity {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            taken: Mutex::default(),
        })
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
        self.limit.saturating_sub(self.lock().total)
    }

    /// What each share has left, given what is held; shares without room are left out.
    pub(crate) fn room(&self, shares: impl IntoIterator<Item = Share>) -> Vec<Room> {
        let taken = self.lock();
        let free = self.limit.saturating_sub(taken.total);
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
