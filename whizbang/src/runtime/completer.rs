//! Writes the completions of handlers without transaction, many at a time.

use std::sync::Arc;

use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::{
    counters::add,
    shared::{Patience, Shared},
};
use crate::store::{Lease, Store};

/// Most completions of one statement.
const BATCH: usize = 500;

/// A handler without transaction has returned.
pub(crate) struct Finished {
    pub(crate) lease: Lease,
    pub(crate) written: oneshot::Sender<()>,
}

/// Runs until all senders are gone, so that nothing that finished is left unwritten.
pub(crate) async fn complete<S: Store>(
    shared: Arc<Shared<S>>,
    mut finished: mpsc::Receiver<Finished>,
) {
    let mut batch = Vec::with_capacity(BATCH);
    // What arrives while one batch is written makes up the next one.
    while finished.recv_many(&mut batch, BATCH).await > 0 {
        let (leases, written): (Vec<_>, Vec<_>) = batch
            .drain(..)
            .map(|finished| (finished.lease, finished.written))
            .unzip();
        write(&shared, &leases).await;
        for written in written {
            // Nobody waits any more: its run was aborted.
            let _ = written.send(());
        }
    }
}

async fn write<S: Store>(shared: &Shared<S>, leases: &[Lease]) {
    let began = Instant::now();
    let mut patience = Patience::default();
    loop {
        let completed = shared.store.complete_batch(leases).await;
        shared.note(&completed);
        match completed {
            Ok(held) => {
                let lost = held.iter().filter(|held| !**held).count();
                add(&shared.counters.leases_lost, lost as u64);
                return;
            }
            Err(error) if began.elapsed() > shared.config.lease => {
                tracing::error!(
                    error = crate::error_chain(&error),
                    count = leases.len(),
                    "completions could not be written; their leases run out and the messages come again"
                );
                return;
            }
            Err(_) => tokio::time::sleep(patience.next_pause()).await,
        }
    }
}
