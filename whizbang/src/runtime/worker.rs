//! Claims due work while there is room, and hands it to runs.

use std::sync::{Arc, atomic::Ordering};

use tokio::time::{Instant, MissedTickBehavior};

use super::{
    counters::add,
    run,
    shared::{Patience, Shared},
    stop::Phase,
};
use crate::store::{ClaimRequest, Store};

/// How often a claim looks from the very start of the due rows. Inbox rows are written by short
/// transactions, which become visible before the low watermarks have settled past them.
const RESCAN: std::time::Duration = std::time::Duration::from_secs(10);

/// What one claim found.
enum Claimed {
    /// There is probably more.
    Full,
    /// That was all.
    All,
    /// No room to claim anything.
    NoRoom,
}

pub(crate) async fn work<S: Store>(shared: Arc<Shared<S>>) {
    let mut tick = tokio::time::interval(shared.config.idle_poll);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut patience = Patience::default();
    let mut last_rescan = None;
    let mut last_full: Option<Instant> = None;
    loop {
        let woken = async {
            tokio::select! {
                () = shared.work.notified() => {}
                _ = tick.tick() => {}
            }
        };
        if shared.stop.unless(Phase::Draining, woken).await.is_none() {
            return;
        }
        if shared.capacity.taken() == 0 {
            shared.drop_sessions();
        }
        while !shared.stop.draining() {
            if !has_room(&shared) {
                break;
            }
            if let Some(since) = last_full.take() {
                shared.capacity.worked_off(since.elapsed());
            }
            let began = Instant::now();
            let rescan = last_rescan.is_none_or(|at: Instant| at.elapsed() >= RESCAN);
            let claimed = claim(&shared, rescan).await;
            shared.note(&claimed);
            match claimed {
                Ok(found) => {
                    patience.reset();
                    if rescan {
                        last_rescan = Some(Instant::now());
                    }
                    if !matches!(found, Claimed::Full) {
                        break;
                    }
                    last_full = Some(began);
                }
                Err(error) => {
                    tracing::debug!(error = crate::error_chain(&error), "a claim failed");
                    patience.pause(&shared.stop).await;
                }
            }
        }
    }
}

/// Claims of a few rows cost as much as claims of many: wait until half the room is free.
fn has_room<S: Store>(shared: &Shared<S>) -> bool {
    let enough = shared.capacity.free() * 2 >= shared.capacity.limit();
    if !enough {
        shared.backlog.store(true, Ordering::Relaxed);
    }
    enough
}

/// Gives back what was leased by calls whose answer was lost: nobody works on it, and it would
/// otherwise wait for the end of its lease and count as a loss.
async fn release_unanswered<S: Store>(shared: &Shared<S>) -> crate::store::StoreResult<()> {
    let tokens = shared.unanswered.tokens(shared.config.lease);
    if tokens.is_empty() {
        return Ok(());
    }
    let released = shared
        .store
        .release_leases(shared.instance.id, &tokens, shared.config.lease)
        .await?;
    shared.unanswered.looked(&tokens);
    if released > 0 {
        tracing::info!(leases = released, "gave back what lost answers had leased");
    }
    Ok(())
}

async fn claim<S: Store>(
    shared: &Arc<Shared<S>>,
    rescan: bool,
) -> crate::store::StoreResult<Claimed> {
    release_unanswered(shared).await?;
    let room = shared.room();
    if room.is_empty() {
        shared.backlog.store(true, Ordering::Relaxed);
        return Ok(Claimed::NoRoom);
    }
    let limit = shared.capacity.free();
    let request = ClaimRequest {
        instance: shared.instance.id,
        token: uuid::Uuid::now_v7(),
        lease: shared.config.lease,
        room,
        limit,
        run: shared.config.stream_run,
        rescan,
    };
    let claimed = shared.store.claim(&request).await;
    shared.note_unanswered(&claimed, Some(request.token));
    let works = claimed?;
    add(&shared.counters.claimed, works.len() as u64);
    let full = works.len() >= limit
        || request.room.iter().any(|room| {
            let got = works
                .iter()
                .filter(|work| work.lease.handler == room.handler)
                .count();
            got >= room.limit
        });
    shared.backlog.store(full, Ordering::Relaxed);
    run::start(shared, works);
    Ok(if full { Claimed::Full } else { Claimed::All })
}
