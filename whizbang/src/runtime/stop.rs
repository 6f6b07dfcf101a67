//! Stopping in two phases: first no new work, then, after a deadline, no work at all.

use std::future::Future;

use tokio::sync::watch;

/// How far the stop has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Everything runs.
    Running,
    /// No new work is taken; what runs may finish.
    Draining,
    /// Running handlers are abandoned.
    Aborting,
    /// Everything has ended, the heartbeat too.
    Ended,
}

/// Tells every actor how far the stop has come; the app holds the sending end.
#[derive(Debug, Clone)]
pub(crate) struct Stop(watch::Receiver<Phase>);

impl Stop {
    pub(crate) fn new() -> (watch::Sender<Phase>, Self) {
        let (sender, receiver) = watch::channel(Phase::Running);
        (sender, Self(receiver))
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.0.borrow()
    }

    pub(crate) fn draining(&self) -> bool {
        self.phase() >= Phase::Draining
    }

    /// Waits until the stop has come at least this far. An app that was dropped counts as ended.
    pub(crate) async fn reached(&self, phase: Phase) {
        let mut receiver = self.0.clone();
        let _ = receiver.wait_for(|now| *now >= phase).await;
    }

    /// Runs `work` unless the stop comes that far first; then `None`.
    pub(crate) async fn unless<T>(&self, phase: Phase, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.reached(phase) => None,
            value = work => Some(value),
        }
    }
}
