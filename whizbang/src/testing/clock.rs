//! The database's clock: tokio's, so that it stands still when a test pauses time.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use chrono::{DateTime, TimeDelta, Utc};
use tokio::time::Instant;

/// A point in database time.
pub(super) type Time = DateTime<Utc>;

/// Later than anything: what PostgreSQL calls `infinity`.
pub(super) const NEVER: Time = DateTime::<Utc>::MAX_UTC;

pub(super) struct Clock {
    began: Time,
    origin: Instant,
    offset: Mutex<Duration>,
}

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock of a database")]
    pub(super) fn new() -> Self {
        Self {
            began: Utc::now(),
            origin: Instant::now(),
            offset: Mutex::new(Duration::ZERO),
        }
    }

    pub(super) fn now(&self) -> Time {
        let offset = *self.offset.lock().unwrap_or_else(PoisonError::into_inner);
        later(self.began, self.origin.elapsed().saturating_add(offset))
    }

    /// Jumps ahead.
    pub(super) fn advance(&self, time: Duration) {
        let mut offset = self.offset.lock().unwrap_or_else(PoisonError::into_inner);
        *offset = offset.saturating_add(time);
    }
}

/// `time` plus `delay`, or never.
pub(super) fn later(time: Time, delay: Duration) -> Time {
    TimeDelta::from_std(delay)
        .ok()
        .and_then(|delay| time.checked_add_signed(delay))
        .unwrap_or(NEVER)
}

/// `time` minus `age`, or the beginning of time.
pub(super) fn earlier(time: Time, age: Duration) -> Time {
    TimeDelta::from_std(age)
        .ok()
        .and_then(|age| time.checked_sub_signed(age))
        .unwrap_or(DateTime::<Utc>::MIN_UTC)
}
