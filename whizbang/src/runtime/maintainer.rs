//! Housekeeping in bounded rounds.

use std::{sync::Arc, time::Duration};

use rand::RngExt;

use super::{shared::Shared, stop::Phase};
use crate::store::Store;

/// Rows of one task from which on another round follows soon.
const BUSY: u64 = 5_000;

pub(crate) async fn maintain<S: Store>(shared: Arc<Shared<S>>) {
    let every = shared.config.maintenance;
    if every.is_zero() {
        return;
    }
    let mut pause = jittered(every);
    loop {
        let slept = shared
            .stop
            .unless(Phase::Draining, tokio::time::sleep(pause));
        if slept.await.is_none() {
            return;
        }
        let round = shared.store.maintain().await;
        shared.note(&round);
        pause = jittered(every);
        match round {
            Ok(tasks) => {
                for task in tasks.iter().filter(|task| task.affected > 0) {
                    tracing::info!(task = task.task, affected = task.affected, "maintenance");
                }
                if tasks.iter().any(|task| task.affected >= BUSY) {
                    pause = Duration::from_secs(1).min(every);
                }
            }
            Err(error) => {
                tracing::warn!(
                    error = crate::error_chain(&error),
                    "maintenance failed; it is tried again"
                );
            }
        }
    }
}

/// Instances that started together do not clean up together.
fn jittered(every: Duration) -> Duration {
    every.mul_f64(rand::rng().random_range(0.5..=1.0))
}
