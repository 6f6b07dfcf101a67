//! Takes claimed rows through the executor and reports what did not complete.
//!
//! A *run* is one row without a stream, or consecutive rows of one stream in its lane, which are
//! worked on one after another. What happens after each outcome is the table in the guide "What
//! counts as what".

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};
use tracing::Instrument;

use super::{
    breaker::Gate,
    capacity::Slot,
    completer::Finished,
    counters::add,
    executor::{Execution, Outcome, metadata_of},
    held::Holding,
    shared::{HandlerState, Patience, Shared},
    stop::Phase,
};
use crate::{
    Decision, OnDead,
    handler::Call,
    store::{Action, Lease, Report, Store, Work},
};

/// How long a row waits when the database was away while it ran.
const AWAY_SNOOZE: Duration = Duration::from_millis(500);

/// Rows of one stream, or a single row.
pub(crate) struct Run<S: Store> {
    shared: Arc<Shared<S>>,
    rows: VecDeque<(Work, Option<Slot>)>,
    holding: Holding,
    /// Completions of handlers without transaction that are not written yet.
    unwritten: Vec<oneshot::Receiver<()>>,
}

/// Whether the run goes on.
enum Next {
    Row,
    /// The stream is finished and given back.
    Finished,
    /// The lease has been given back or lost.
    Over,
}

/// Splits claimed rows into runs and starts a task for each.
pub(crate) fn start<S: Store>(shared: &Arc<Shared<S>>, works: Vec<Work>) {
    let mut single: Vec<Vec<Work>> = Vec::new();
    let mut place = std::collections::HashMap::new();
    for work in works {
        match work.lease.stream_id {
            None => single.push(vec![work]),
            Some(stream) => {
                let index = *place
                    .entry((work.lease.lane.clone(), stream))
                    .or_insert_with(|| {
                        single.push(Vec::new());
                        single.len() - 1
                    });
                if let Some(run) = single.get_mut(index) {
                    run.push(work);
                }
            }
        }
    }
    for mut rows in single {
        rows.sort_by_key(|work| work.sequence);
        let Some(first) = rows.first() else { continue };
        let holding = shared.held.hold(&first.lease);
        let run = Run {
            rows: rows
                .into_iter()
                .map(|work| {
                    let slot = slot_for(shared, &work);
                    (work, slot)
                })
                .collect(),
            shared: Arc::clone(shared),
            holding,
            unwritten: Vec::new(),
        };
        tokio::spawn(run.go());
    }
}

fn slot_for<S: Store>(shared: &Arc<Shared<S>>, work: &Work) -> Option<Slot> {
    shared
        .live
        .get(work.lease.handler.as_str())
        .map(|state| shared.capacity.hold(state.handler.spec.name))
}

impl<S: Store> Run<S> {
    async fn go(mut self) {
        let mut stream = None;
        loop {
            let Some((work, slot)) = self.rows.pop_front() else {
                let Some(held) = stream.take() else { break };
                if !self.refill(&held).await {
                    break;
                }
                continue;
            };
            stream = work.lease.stream_id.map(|_| work.lease.clone());
            let next = self.row(&work).await;
            drop(slot);
            match next {
                Next::Row if stream.is_none() => break,
                Next::Row => {}
                Next::Finished => stream = None,
                Next::Over => break,
            }
        }
        let shared = Arc::clone(&self.shared);
        self.written().await;
        drop(self);
        // Without a backlog nothing waits for this room, and a claim would find nothing.
        if shared.backlog.load(Ordering::Relaxed) {
            shared.work.notify_one();
        }
    }

    /// Takes the next rows of the stream; `false` when there are none and it is given back.
    async fn refill(&mut self, held: &Lease) -> bool {
        self.written().await;
        let shared = &self.shared;
        if shared.stop.draining() {
            give_stream_back(shared, held).await;
            return false;
        }
        let handlers: Vec<_> = shared.live.keys().map(|name| (*name).to_owned()).collect();
        let next = shared
            .store
            .next_in_stream(
                held,
                shared.config.lease,
                shared.config.stream_run,
                &handlers,
            )
            .await;
        shared.note(&next);
        match next {
            Ok(works) => {
                for work in works {
                    let slot = slot_for(shared, &work);
                    self.rows.push_back((work, slot));
                }
                !self.rows.is_empty()
            }
            Err(_) => {
                give_stream_back(shared, held).await;
                false
            }
        }
    }

    /// Gives the row (and with it the stream) back without counting anything.
    async fn give_back(&mut self, work: &Work, action: Action) {
        self.written().await;
        let report = Report {
            lease: work.lease.clone(),
            action,
            error: None,
        };
        send_report(&self.shared, report).await;
    }

    /// Waits until the completions of this run are written: a report gives the stream's lease
    /// back, and what is completed after that counts for nothing.
    async fn written(&mut self) {
        for written in self.unwritten.drain(..) {
            // The completer answers or is gone; then the lease runs out and the rows come again.
            let _ = written.await;
        }
    }

    async fn row(&mut self, work: &Work) -> Next {
        let shared = Arc::clone(&self.shared);
        let Some(state) = shared.live.get(work.lease.handler.as_str()) else {
            self.give_back(work, Action::Release).await;
            return Next::Over;
        };
        if !matches!(state.handler.call, Call::Plain(_)) {
            // Its commit must not overtake the completions of earlier messages of the stream.
            self.written().await;
        }
        let began = async {
            let all = shared.permits.acquire().await.ok()?;
            let own = state.permits.acquire().await.ok()?;
            Some((all, own))
        };
        let waiting = shared.stop.unless(Phase::Draining, began);
        let permits = tokio::select! {
            biased;
            () = self.holding.until_lost() => {
                add(&shared.counters.leases_lost, 1);
                return Next::Over;
            }
            permits = waiting => permits.flatten(),
        };
        let gate = match permits {
            Some(_) => state.breaker.enter(work.lease.message_id),
            None => Gate::Shut,
        };
        if gate == Gate::Shut {
            self.give_back(work, Action::Release).await;
            return Next::Over;
        }
        let outcome = self.execute(state, work).await;
        drop(permits);
        self.act(state, work, outcome, gate == Gate::Trial).await
    }

    async fn execute(&self, state: &HandlerState<S>, work: &Work) -> Outcome {
        let shared = &self.shared;
        if work.attempts >= state.handler.policy.max_attempts {
            return Outcome::Dead {
                reason: "crashed",
                error: "the process died again and again while it ran this message alone"
                    .to_owned(),
            };
        }
        let metadata = metadata_of(work);
        let execution = Execution {
            shared,
            handler: &state.handler,
            work,
            metadata: &metadata,
            last: self.rows.is_empty(),
            holding: &self.holding,
        };
        let span = tracing::info_span!(
            "handle",
            handler = state.handler.spec.name,
            message_type = %work.message_type,
            message_id = %work.lease.message_id,
            attempt = metadata.attempt,
        );
        if work.losses == 0 {
            let _company = shared.alone.read().await;
            return execution.run().instrument(span).await;
        }
        // A process died with this message once: whatever it does, it does it to nobody else.
        let _alone = shared.alone.write().await;
        match shared.store.mark_started(&work.lease).await {
            Ok(true) => execution.run().instrument(span).await,
            Ok(false) => Outcome::LeaseLost,
            Err(error) => Outcome::Away(error),
        }
    }

    /// Acts on an outcome.
    async fn act(
        &mut self,
        state: &HandlerState<S>,
        work: &Work,
        outcome: Outcome,
        trial: bool,
    ) -> Next {
        let shared = Arc::clone(&self.shared);
        let message = work.lease.message_id;
        match outcome {
            Outcome::Committed { more } => {
                succeeded(&shared, state);
                if more || work.lease.stream_id.is_none() {
                    Next::Row
                } else {
                    Next::Finished
                }
            }
            Outcome::Returned => {
                succeeded(&shared, state);
                self.complete_later(work).await;
                Next::Row
            }
            Outcome::Failed { decision, error } => {
                self.written().await;
                let report = failure_report(state, work, decision, error, trial);
                note_failure(&shared, state, &report, decision);
                send_report(&shared, report).await;
                Next::Over
            }
            Outcome::Dead { reason, error } => {
                state.breaker.undecided(message);
                self.written().await;
                send_report(&shared, dead(state, work, reason, error)).await;
                Next::Over
            }
            Outcome::NotNow(delay) => {
                state.breaker.undecided(message);
                self.give_back(work, Action::Snooze(delay)).await;
                Next::Over
            }
            Outcome::LeaseLost => {
                state.breaker.undecided(message);
                add(&shared.counters.leases_lost, 1);
                tracing::warn!(%message, handler = %work.lease.handler, "the lease was lost; rolled back, another instance has the message");
                if work.lease.stream_id.is_some() {
                    // If somebody deleted the row by hand, the stream is still ours to give back.
                    give_stream_back(&shared, &work.lease).await;
                }
                Next::Over
            }
            Outcome::Away(error) => {
                state.breaker.undecided(message);
                shared.note::<()>(&Err(error));
                // Not at once, or a database that is half away would be asked without pause.
                self.give_back(work, Action::Snooze(AWAY_SNOOZE)).await;
                if work.lease.stream_id.is_some() {
                    // If the commit did go through, there was no row to report, and the rest of
                    // the stream would wait until the lease runs out.
                    give_stream_back(&shared, &work.lease).await;
                }
                Next::Over
            }
            Outcome::Aborted => {
                state.breaker.undecided(message);
                self.give_back(work, Action::Release).await;
                Next::Over
            }
        }
    }

    async fn complete_later(&mut self, work: &Work) {
        let (written, receiver) = oneshot::channel();
        let finished = Finished {
            lease: work.lease.clone(),
            written,
        };
        // A closed channel means that the completer has ended: the lease runs out.
        if self.shared.finished.send(finished).await.is_ok() {
            self.unwritten.push(receiver);
        }
    }
}

fn succeeded<S: Store>(shared: &Shared<S>, state: &HandlerState<S>) {
    add(&shared.counters.completed, 1);
    if state.breaker.success() {
        tracing::info!(
            handler = state.handler.spec.name,
            "the circuit breaker closed"
        );
        shared.work.notify_one();
    }
}

fn failure_report<S: Store>(
    state: &HandlerState<S>,
    work: &Work,
    decision: Decision,
    error: String,
    trial: bool,
) -> Report {
    let policy = &state.handler.policy;
    let failed_attempts = work.attempts.saturating_add(1);
    let backoff = || policy.backoff.wait(failed_attempts, &mut rand::rng());
    let action = match decision {
        Decision::Snooze(delay) => Action::Snooze(delay),
        Decision::Permanent => return dead(state, work, "permanent", error),
        Decision::Retry(delay) if trial => Action::Snooze(delay.unwrap_or_else(backoff)),
        Decision::Retry(_) if failed_attempts >= policy.max_attempts => {
            return dead(state, work, "failed", error);
        }
        Decision::Retry(delay) => Action::Retry(delay.unwrap_or_else(backoff)),
    };
    Report {
        lease: work.lease.clone(),
        action,
        error: Some(error),
    }
}

fn dead<S: Store>(
    state: &HandlerState<S>,
    work: &Work,
    reason: &'static str,
    error: String,
) -> Report {
    Report {
        lease: work.lease.clone(),
        action: Action::Dead {
            reason,
            park: state.handler.policy.on_dead == OnDead::Park,
        },
        error: Some(error),
    }
}

fn note_failure<S: Store>(
    shared: &Shared<S>,
    state: &HandlerState<S>,
    report: &Report,
    decision: Decision,
) {
    let handler = state.handler.spec.name;
    let message = report.lease.message_id;
    if let Decision::Snooze(_) = decision {
        add(&shared.counters.snoozed, 1);
        state.breaker.undecided(message);
        return;
    }
    add(&shared.counters.failed, 1);
    let error = report.error.as_deref().unwrap_or_default();
    tracing::warn!(handler, %message, error, action = ?report.action, "a message failed");
    if decision == Decision::Permanent {
        state.breaker.undecided(message);
    } else if let Some(open) = state.breaker.failure(message) {
        tracing::warn!(handler, ?open, "the circuit breaker is open");
    }
}

/// Reports for as long as the lease may last; after that the row comes back by itself.
async fn send_report<S: Store>(shared: &Arc<Shared<S>>, report: Report) {
    let reports = [report];
    let began = Instant::now();
    let mut patience = Patience::default();
    loop {
        let sent = shared.store.report(&reports).await;
        shared.note(&sent);
        match sent {
            Ok(held) => {
                let held = held.first().copied().unwrap_or(false);
                let [report] = &reports;
                match (&report.action, held) {
                    (Action::Dead { .. }, true) => add(&shared.counters.dead, 1),
                    (_, false) => add(&shared.counters.leases_lost, 1),
                    _ => {}
                }
                return;
            }
            Err(error) if began.elapsed() > shared.config.lease => {
                tracing::error!(
                    error = crate::error_chain(&error),
                    "a failure could not be reported; the lease runs out and the message comes again"
                );
                return;
            }
            Err(_) => tokio::time::sleep(pause(&mut patience, shared)).await,
        }
    }
}

/// While the service drains, reports are not allowed to hold it up for long.
fn pause<S: Store>(patience: &mut Patience, shared: &Shared<S>) -> Duration {
    let pause = patience.next_pause();
    if shared.stop.draining() {
        pause.min(Duration::from_millis(200))
    } else {
        pause
    }
}

async fn give_stream_back<S: Store>(shared: &Arc<Shared<S>>, held: &Lease) {
    let closed = shared.store.close_streams(std::slice::from_ref(held)).await;
    shared.note(&closed);
    if let Err(error) = closed {
        tracing::debug!(
            error = crate::error_chain(&error),
            "a stream could not be given back; its lease runs out"
        );
    }
}
