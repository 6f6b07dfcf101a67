//! Says that this instance lives, and releases what dead peers held.

use std::sync::Arc;

use super::{shared::Shared, stop::Phase};
use crate::store::Store;

pub(crate) async fn beat<S: Store>(shared: Arc<Shared<S>>) {
    let subscriptions = shared.handlers.subscriptions();
    let config = &shared.config;
    loop {
        let slept = shared
            .stop
            .unless(Phase::Ended, tokio::time::sleep(config.heartbeat));
        if slept.await.is_none() {
            return;
        }
        let beat = shared
            .store
            .heartbeat(
                &shared.instance,
                &subscriptions,
                config.dead_after,
                config.lease,
            )
            .await;
        shared.note(&beat);
        match beat {
            Ok(beat) => {
                if beat.released > 0 || beat.dead_peers > 0 {
                    tracing::info!(
                        peers = beat.dead_peers,
                        leases = beat.released,
                        "released what dead peers held"
                    );
                    shared.work.notify_one();
                }
                if !beat.known {
                    register_again(&shared).await;
                }
            }
            Err(error) => {
                tracing::warn!(error = crate::error_chain(&error), "the heartbeat failed");
            }
        }
    }
}

/// Peers took this instance for dead. What it held is theirs now, which the fence makes safe; it
/// joins again and takes new work.
async fn register_again<S: Store>(shared: &Shared<S>) {
    tracing::warn!("peers took this instance for dead; it joins again");
    let registered = shared
        .store
        .register(&shared.instance, &shared.handlers.subscriptions())
        .await;
    if let Err(error) = registered {
        tracing::warn!(
            error = crate::error_chain(&error),
            "this instance could not join again yet"
        );
    }
}
