//! Pause and circuit breaker of one handler in one process.

use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;
use uuid::Uuid;

use crate::BreakerPolicy;

/// What may run now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gate {
    /// Anything.
    Open,
    /// One message, to see whether the outage is over; its failure counts no attempt.
    Trial,
    /// Nothing.
    Shut,
}

#[derive(Default)]
struct State {
    paused: bool,
    failed: HashSet<Uuid>,
    tripped: Option<Tripped>,
}

struct Tripped {
    next_trial: Instant,
    cool_down: Duration,
    on_trial: Option<Uuid>,
}

/// Decides whether a handler may be given messages.
pub(crate) struct Breaker {
    policy: Option<BreakerPolicy>,
    state: Mutex<State>,
}

impl Breaker {
    pub(crate) fn new(policy: Option<BreakerPolicy>) -> Self {
        Self {
            policy,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn pause(&self, paused: bool) {
        self.lock().paused = paused;
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.lock().paused
    }

    pub(crate) fn is_tripped(&self) -> bool {
        self.lock().tripped.is_some()
    }

    /// What may be claimed.
    pub(crate) fn gate(&self) -> Gate {
        let state = self.lock();
        match &state.tripped {
            _ if state.paused => Gate::Shut,
            None => Gate::Open,
            Some(tripped) if tripped.on_trial.is_some() => Gate::Shut,
            Some(tripped) if tripped.next_trial > Instant::now() => Gate::Shut,
            Some(_) => Gate::Trial,
        }
    }

    /// Asks to run this message now; a trial is taken by the first who asks.
    pub(crate) fn enter(&self, message: Uuid) -> Gate {
        let mut state = self.lock();
        if state.paused {
            return Gate::Shut;
        }
        let Some(tripped) = &mut state.tripped else {
            return Gate::Open;
        };
        if tripped.on_trial.is_some() || tripped.next_trial > Instant::now() {
            return Gate::Shut;
        }
        tripped.on_trial = Some(message);
        Gate::Trial
    }

    /// A message succeeded.
    pub(crate) fn success(&self) -> bool {
        let mut state = self.lock();
        state.failed.clear();
        state.tripped.take().is_some()
    }

    /// A message failed in a way that counts. Returns how long the breaker stays open if this
    /// opened it, or kept it open.
    pub(crate) fn failure(&self, message: Uuid) -> Option<Duration> {
        let policy = self.policy?;
        let mut state = self.lock();
        if let Some(tripped) = &mut state.tripped {
            if tripped.on_trial != Some(message) {
                return None;
            }
            tripped.cool_down = tripped
                .cool_down
                .saturating_mul(2)
                .min(policy.longest_cool_down);
            tripped.next_trial = Instant::now() + tripped.cool_down;
            tripped.on_trial = None;
            return Some(tripped.cool_down);
        }
        state.failed.insert(message);
        if state.failed.len() < policy.failures as usize {
            return None;
        }
        state.failed.clear();
        state.tripped = Some(Tripped {
            next_trial: Instant::now() + policy.cool_down,
            cool_down: policy.cool_down,
            on_trial: None,
        });
        Some(policy.cool_down)
    }

    /// A trial ended without an answer (released, lease lost, database away).
    pub(crate) fn undecided(&self, message: Uuid) {
        if let Some(tripped) = &mut self.lock().tripped
            && tripped.on_trial == Some(message)
        {
            tripped.on_trial = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker() -> Breaker {
        Breaker::new(Some(BreakerPolicy {
            failures: 2,
            cool_down: Duration::from_secs(5),
            longest_cool_down: Duration::from_secs(8),
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn it_opens_after_different_messages_failed_and_closes_after_a_success() {
        let breaker = breaker();
        let (one, two) = (Uuid::from_u128(1), Uuid::from_u128(2));
        assert_eq!(breaker.failure(one), None);
        assert_eq!(breaker.failure(one), None, "one message is one failure");
        assert_eq!(breaker.failure(two), Some(Duration::from_secs(5)));
        assert_eq!(breaker.enter(one), Gate::Shut);
        tokio::time::advance(Duration::from_secs(6)).await;
        assert_eq!(breaker.enter(one), Gate::Trial);
        assert_eq!(breaker.enter(two), Gate::Shut, "one trial at a time");
        assert_eq!(breaker.failure(one), Some(Duration::from_secs(8)));
        tokio::time::advance(Duration::from_secs(9)).await;
        assert_eq!(breaker.enter(two), Gate::Trial);
        assert!(breaker.success());
        assert_eq!(breaker.enter(one), Gate::Open);
    }
}
