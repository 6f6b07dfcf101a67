//! The leases that this process holds, for the renewer, and the way to tell a run that it lost its.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;
use uuid::Uuid;

use crate::store::Lease;

/// What a lease is held on: a row, or a stream in its lane.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Unit {
    Row(Uuid, String),
    Stream(String, Uuid),
}

impl Unit {
    fn of(lease: &Lease) -> Self {
        match lease.stream_id {
            Some(stream) => Self::Stream(lease.lane.clone(), stream),
            None => Self::Row(lease.message_id, lease.handler.clone()),
        }
    }
}

struct Entry {
    lease: Lease,
    lost: watch::Sender<bool>,
}

/// All leases held by this process.
#[derive(Default)]
pub(crate) struct HeldLeases {
    entries: Mutex<HashMap<Unit, Entry>>,
}

impl HeldLeases {
    fn lock(&self) -> MutexGuard<'_, HashMap<Unit, Entry>> {
        // Nothing that can panic runs under the lock.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a lease until the guard is dropped.
    pub(crate) fn hold(self: &Arc<Self>, lease: &Lease) -> Holding {
        let (sender, lost) = watch::channel(false);
        let entry = Entry {
            lease: lease.clone(),
            lost: sender,
        };
        self.lock().insert(Unit::of(lease), entry);
        Holding {
            leases: Arc::clone(self),
            unit: Unit::of(lease),
            token: lease.token,
            lost,
        }
    }

    /// All leases, to be renewed.
    pub(crate) fn all(&self) -> Vec<Lease> {
        self.lock()
            .values()
            .map(|entry| entry.lease.clone())
            .collect()
    }

    /// Tells the runs of these leases that they lost them, unless they hold newer ones.
    pub(crate) fn lost(&self, leases: &[Lease]) {
        let entries = self.lock();
        for lease in leases {
            if let Some(entry) = entries.get(&Unit::of(lease))
                && entry.lease.token == lease.token
            {
                entry.lost.send_replace(true);
            }
        }
    }
}

/// A lease that is being renewed for as long as this lives.
pub(crate) struct Holding {
    leases: Arc<HeldLeases>,
    unit: Unit,
    token: Uuid,
    lost: watch::Receiver<bool>,
}

impl Holding {
    /// Waits until the lease is lost.
    pub(crate) async fn until_lost(&self) {
        let mut lost = self.lost.clone();
        // A closed channel means that a newer lease of this very process replaced this one, which
        // it could only get because this one had run out.
        let _ = lost.wait_for(|lost| *lost).await;
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let mut entries = self.leases.lock();
        if entries
            .get(&self.unit)
            .is_some_and(|entry| entry.lease.token == self.token)
        {
            entries.remove(&self.unit);
        }
    }
}
