//! Renews the leases of what this process holds, and tells runs whose lease is gone.

use std::{collections::HashSet, sync::Arc};

use super::{shared::Shared, stop::Phase};
use crate::store::Store;

/// Most leases of one statement.
const BATCH: usize = 500;

pub(crate) async fn renew<S: Store>(shared: Arc<Shared<S>>) {
    let pause = shared.config.lease / 3;
    loop {
        // Leases of handlers that finish during a shutdown must hold until they have.
        let slept = shared.stop.unless(Phase::Ended, tokio::time::sleep(pause));
        if slept.await.is_none() {
            return;
        }
        let held = shared.held.all();
        for batch in held.chunks(BATCH) {
            let renewed = shared.store.renew(batch, shared.config.lease).await;
            shared.note(&renewed);
            match renewed {
                Ok(still) => {
                    let still: HashSet<_> = still.into_iter().collect();
                    let lost: Vec<_> = batch
                        .iter()
                        .filter(|lease| !still.contains(lease))
                        .cloned()
                        .collect();
                    shared.held.lost(&lost);
                }
                Err(error) => {
                    // Two more renewals fit into a lease, and every commit is fenced.
                    tracing::warn!(
                        error = crate::error_chain(&error),
                        "leases could not be renewed"
                    );
                }
            }
        }
    }
}
