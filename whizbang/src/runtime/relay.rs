//! Takes committed outbox rows to where they go: the own inbox, and the transports.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior},
};
use uuid::Uuid;

use super::{
    consumer::count_report,
    counters::add,
    run,
    shared::{Patience, Shared},
    stop::Phase,
};
use crate::{
    store::{OutboxRow, Refusal, Store, StoreResult},
    transport::{Sent, Transport},
};

/// How long after a publish the relay looks again and again, because it does not see when the
/// caller's transaction commits. After that the idle poll finds the row.
const FAST_WINDOW: Duration = Duration::from_secs(2);
/// First and longest pause between two looks inside that window.
const FAST_PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Decides when a relay looks.
struct Wake {
    committed: watch::Receiver<u64>,
    published: watch::Receiver<u64>,
    tick: tokio::time::Interval,
    fast_until: Option<Instant>,
    fast_pause: Duration,
}

impl Wake {
    fn new<S: Store>(shared: &Shared<S>) -> Self {
        let hint = shared.dispatcher.relay_hint();
        let mut tick = tokio::time::interval(shared.config.idle_poll);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            committed: hint.on_committed(),
            published: hint.on_published(),
            tick,
            fast_until: None,
            fast_pause: FAST_PAUSE.0,
        }
    }

    /// Waits for a reason to look.
    async fn wait(&mut self) {
        let fast = self.fast_until.filter(|until| *until > Instant::now());
        let fast_pause = self.fast_pause;
        let fast_look = async {
            match fast {
                Some(_) => tokio::time::sleep(fast_pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            Ok(()) = self.committed.changed() => {}
            Ok(()) = self.published.changed() => {
                self.fast_until = Some(Instant::now() + FAST_WINDOW);
                self.fast_pause = FAST_PAUSE.0;
            }
            () = fast_look => self.fast_pause = (fast_pause * 2).min(FAST_PAUSE.1),
            _ = self.tick.tick() => {}
        }
    }

    /// Something was found, so what the publish announced has probably arrived.
    fn found(&mut self) {
        self.fast_until = None;
    }
}

/// Moves rows to the own inbox.
pub(crate) async fn deliver_locally<S: Store>(shared: Arc<Shared<S>>) {
    let mut wake = Wake::new(&shared);
    let mut patience = Patience::default();
    let service = shared.instance.service.clone();
    while shared
        .stop
        .unless(Phase::Draining, wake.wait())
        .await
        .is_some()
    {
        while !shared.stop.draining() {
            let hand_over = shared.hand_over();
            let limit = shared.config.relay_batch;
            let delivery = shared
                .store
                .deliver_locally(&service, limit, hand_over.as_ref())
                .await;
            shared.note(&delivery);
            shared.note_unanswered(&delivery, hand_over.as_ref().map(|offer| offer.token));
            let moved = match delivery {
                Ok(delivery) => {
                    patience.reset();
                    add(&shared.counters.delivered, delivery.moved);
                    count_report(&shared, &delivery.report);
                    run::start(&shared, delivery.report.leased);
                    delivery.moved
                }
                Err(error) => {
                    tracing::debug!(
                        error = crate::error_chain(&error),
                        "a local delivery failed"
                    );
                    patience.pause(&shared.stop).await;
                    continue;
                }
            };
            if moved > 0 {
                wake.found();
            }
            if (moved as usize) < limit {
                break;
            }
        }
    }
}

/// Moves rows to a transport.
pub(crate) async fn relay<S: Store>(shared: Arc<Shared<S>>, transport: Arc<dyn Transport>) {
    let relay = Relay {
        token: Uuid::now_v7(),
        shared,
        transport,
    };
    let stop = relay.shared.stop.clone();
    let mut wake = Wake::new(&relay.shared);
    let mut patience = Patience::default();
    while stop.unless(Phase::Draining, wake.wait()).await.is_some() {
        while !stop.draining() {
            match relay.round().await {
                Ok(0) => {
                    patience.reset();
                    break;
                }
                Ok(_) => {
                    patience.reset();
                    wake.found();
                }
                // Nothing is counted against any message.
                Err(Away) => patience.pause(&stop).await,
            }
        }
    }
    let destination = relay.transport.name();
    let released = relay
        .shared
        .store
        .release_relay(destination, relay.shared.instance.id)
        .await;
    if let Err(error) = released {
        tracing::debug!(
            error = crate::error_chain(&error),
            "the relay's lease runs out by itself"
        );
    }
}

/// The broker or the database is away.
struct Away;

struct Relay<S: Store> {
    shared: Arc<Shared<S>>,
    transport: Arc<dyn Transport>,
    token: Uuid,
}

impl<S: Store> Relay<S> {
    /// Sends one batch; says how many rows are settled.
    async fn round(&self) -> Result<usize, Away> {
        let shared = &self.shared;
        let destination = self.transport.name();
        let rows = self.ask(
            shared
                .store
                .claim_outbox(
                    destination,
                    shared.config.relay_batch,
                    shared.config.relay_lease,
                    self.token,
                    shared.instance.id,
                )
                .await,
        )?;
        if rows.is_empty() {
            return Ok(0);
        }
        let envelopes: Vec<_> = rows.iter().map(|row| row.envelope.clone()).collect();
        let answers = match self.transport.send(&envelopes).await {
            Ok(answers) => answers,
            Err(error) => {
                tracing::warn!(
                    error = crate::error_chain(&error),
                    "the transport is away; the outbox waits"
                );
                return Err(Away);
            }
        };
        self.settle(&rows, answers).await
    }

    async fn settle(&self, rows: &[OutboxRow], answers: Vec<Sent>) -> Result<usize, Away> {
        let shared = &self.shared;
        let destination = self.transport.name();
        let mut acknowledged = Vec::new();
        let mut refusals = Vec::new();
        // A transport that answers for fewer envelopes leaves the rest for the next round.
        for (row, answer) in rows.iter().zip(answers) {
            match answer {
                Sent::Acknowledged => acknowledged.push(row.envelope.id),
                Sent::Refused(error) => refusals.push(self.refusal(row, error)),
                Sent::Skipped => {}
            }
        }
        if !acknowledged.is_empty() {
            let removed = shared
                .store
                .complete_outbox(destination, self.token, &acknowledged)
                .await;
            self.ask(removed)?;
            add(&shared.counters.relayed, acknowledged.len() as u64);
        }
        if !refusals.is_empty() {
            let reported = shared
                .store
                .report_outbox(destination, self.token, &refusals)
                .await;
            // Another relay that took over meets the same refusals and reports them itself.
            if self.ask(reported)? {
                add(&shared.counters.refused, refusals.len() as u64);
            }
        }
        let settled = acknowledged.len() + refusals.len();
        if settled == 0 { Err(Away) } else { Ok(settled) }
    }

    fn refusal(&self, row: &OutboxRow, error: String) -> Refusal {
        let config = &self.shared.config;
        let failed = row.attempts.saturating_add(1);
        let message = row.envelope.id;
        tracing::warn!(%message, transport = self.transport.name(), error, "the transport refused a message");
        Refusal {
            message_id: message,
            retry: (failed < config.max_attempts)
                .then(|| config.backoff.wait(failed, &mut rand::rng())),
            error: crate::storable_text(error),
        }
    }

    fn ask<T>(&self, result: StoreResult<T>) -> Result<T, Away> {
        self.shared.note(&result);
        result.map_err(|error| {
            tracing::debug!(
                error = crate::error_chain(&error),
                "the relay could not reach its outbox"
            );
            Away
        })
    }
}
