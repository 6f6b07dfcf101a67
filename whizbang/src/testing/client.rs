//! One process as the database sees it: its connections, and what befalls its calls.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Semaphore, time::Instant};

use super::faults::{Fault, Faults, Operation};

/// How a call goes on after its fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It goes on.
    Go,
    /// The connection is lost.
    Lost(Duration),
    /// The connection is lost, and the commit goes through later.
    Late(Duration),
    /// Another transaction was in the way.
    Conflict,
    /// The process is dead.
    Crash,
}

pub(super) struct Client {
    pub(super) id: u64,
    faults: Arc<dyn Faults>,
    crashed: AtomicBool,
    stalled_until: Mutex<Option<Instant>>,
    pub(super) connections: Option<(usize, Arc<Semaphore>)>,
}

impl Client {
    pub(super) fn new(id: u64, faults: Arc<dyn Faults>, connections: Option<usize>) -> Self {
        Self {
            id,
            faults,
            crashed: AtomicBool::new(false),
            stalled_until: Mutex::default(),
            connections: connections.map(|limit| (limit, Arc::new(Semaphore::new(limit)))),
        }
    }

    /// The same process before it has done anything, with so many connections.
    pub(super) fn limited_to(&self, connections: usize) -> Self {
        Self::new(self.id, Arc::clone(&self.faults), Some(connections))
    }

    pub(super) fn crash(&self) {
        self.crashed.store(true, Ordering::Release);
    }

    pub(super) fn is_crashed(&self) -> bool {
        self.crashed.load(Ordering::Acquire)
    }

    pub(super) fn stall(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut stalled = self.lock_stalled();
        *stalled = (*stalled).max(Some(until));
    }

    fn lock_stalled(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        // Nothing that can panic runs under the lock.
        self.stalled_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns once the process runs; never, if it is dead.
    pub(super) async fn standing(&self) {
        loop {
            if self.is_crashed() {
                std::future::pending::<()>().await;
            }
            let stalled = *self.lock_stalled();
            match stalled.filter(|until| *until > Instant::now()) {
                Some(until) => tokio::time::sleep_until(until).await,
                None => return,
            }
        }
    }

    pub(super) async fn before(&self, operation: Operation) -> Verdict {
        self.standing().await;
        self.meet(self.faults.before(operation)).await
    }

    pub(super) async fn after(&self, operation: Operation) -> Verdict {
        let verdict = self.meet(self.faults.after(operation)).await;
        // The answer of a call reaches a process that was stopped meanwhile when it goes on.
        self.standing().await;
        verdict
    }

    async fn meet(&self, fault: Fault) -> Verdict {
        match fault {
            Fault::None => Verdict::Go,
            Fault::Delay(time) => {
                tokio::time::sleep(time).await;
                self.standing().await;
                Verdict::Go
            }
            Fault::Stall(time) => {
                self.stall(time);
                self.standing().await;
                Verdict::Go
            }
            Fault::Crash => Verdict::Crash,
            Fault::Lost { lingers } => Verdict::Lost(lingers),
            Fault::Late(time) => Verdict::Late(time),
            Fault::Conflict => Verdict::Conflict,
        }
    }
}
