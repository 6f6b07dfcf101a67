//! The running service: started actors, control, and the stop in two phases.

use std::{
    future::Future,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use futures::FutureExt;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::Instant,
};

use super::{
    completer::{self, Finished},
    consumer, counters,
    counters::Counts,
    heart, maintainer, relay, renewer,
    shared::{Patience, Shared},
    stop::{Phase, Stop},
    worker,
};
use crate::{
    Dispatcher, StoreError,
    dispatcher::panic_text,
    store::{DeadLetter, Requeued, Store},
    transport::Transport,
};

/// A running service. Dropping it without [`shutdown`](Self::shutdown) abandons what runs; leases
/// then run out and other instances take over.
pub struct App<S: Store> {
    shared: Arc<Shared<S>>,
    phase: watch::Sender<Phase>,
    tasks: Mutex<Option<Tasks>>,
}

struct Tasks {
    /// Take new work; end when the service drains.
    intake: Vec<JoinHandle<()>>,
    /// Serve what runs; end last.
    support: Vec<JoinHandle<()>>,
    completer: JoinHandle<()>,
}

/// How the service is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Takes new work.
    pub accepting: bool,
    /// The last call reached the database.
    pub database: bool,
    /// Messages held by this process.
    pub held: usize,
    /// Handlers that were paused by hand.
    pub paused: Vec<String>,
    /// Handlers whose circuit breaker is open.
    pub tripped: Vec<String>,
}

/// The service stopped, but not everything ended in good order.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShutdownError {
    /// Handlers ran past the deadline and were abandoned; their messages come again.
    #[error(
        "{0} messages did not finish within the shutdown deadline; they were rolled back and come again"
    )]
    Abandoned(usize),
    /// The instance could not be taken off the list; peers find out by its silence.
    #[error("the instance could not deregister")]
    Deregister(#[source] StoreError),
}

impl<S: Store> App<S> {
    pub(crate) fn run(
        shared: Arc<Shared<S>>,
        phase: watch::Sender<Phase>,
        completions: mpsc::Receiver<Finished>,
        intakes: Vec<Arc<dyn Transport>>,
        relays: Vec<Arc<dyn Transport>>,
    ) -> Self {
        let mut intake = vec![
            supervise(&shared, "worker", worker::work),
            supervise(&shared, "local relay", relay::deliver_locally),
            supervise(&shared, "maintainer", maintainer::maintain),
        ];
        for transport in intakes {
            intake.push(supervise(&shared, "consumer", move |shared| {
                consumer::consume(shared, Arc::clone(&transport))
            }));
        }
        for transport in relays {
            intake.push(supervise(&shared, "relay", move |shared| {
                relay::relay(shared, Arc::clone(&transport))
            }));
        }
        let support = vec![
            supervise(&shared, "renewer", renewer::renew),
            supervise(&shared, "heart", heart::beat),
        ];
        let completer = tokio::spawn(completer::complete(Arc::clone(&shared), completions));
        Self {
            shared,
            phase,
            tasks: Mutex::new(Some(Tasks {
                intake,
                support,
                completer,
            })),
        }
    }

    /// Publishes, sends and executes.
    pub fn dispatcher(&self) -> Dispatcher<S> {
        self.shared.dispatcher.clone()
    }

    /// Id of this instance.
    pub fn instance_id(&self) -> uuid::Uuid {
        self.shared.instance.id
    }

    /// How many messages this process works on at once.
    pub fn concurrency(&self) -> usize {
        self.shared.concurrency
    }

    /// What happened since the start.
    pub fn counts(&self) -> Counts {
        self.shared.counters.snapshot()
    }

    /// How the service is doing, without asking the database.
    pub fn health(&self) -> Health {
        let names = |wanted: fn(&super::breaker::Breaker) -> bool| {
            let mut names: Vec<_> = self
                .shared
                .live
                .iter()
                .filter(|(_, state)| wanted(&state.breaker))
                .map(|(name, _)| (*name).to_owned())
                .collect();
            names.sort();
            names
        };
        Health {
            accepting: !self.shared.stop.draining(),
            database: !self.shared.outage.load(Ordering::Relaxed),
            held: self.shared.capacity.taken(),
            paused: names(super::breaker::Breaker::is_paused),
            tripped: names(super::breaker::Breaker::is_tripped),
        }
    }

    /// Stops giving messages to a handler in this process; they wait. `false`: no such handler.
    pub fn pause(&self, handler: &str) -> bool {
        self.set_paused(handler, true)
    }

    /// Gives messages to a paused handler again. `false`: no such handler.
    pub fn resume(&self, handler: &str) -> bool {
        self.set_paused(handler, false)
    }

    fn set_paused(&self, handler: &str, paused: bool) -> bool {
        let Some(state) = self.shared.live.get(handler) else {
            return false;
        };
        state.breaker.pause(paused);
        self.shared.work.notify_one();
        true
    }

    /// Dead letters with a number above `after`, oldest first.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn dead_letters(
        &self,
        after: i64,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        self.shared.store.dead_letters(after, limit).await
    }

    /// Puts dead letters back to work, with fresh attempts.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn requeue(&self, ids: &[i64]) -> Result<Vec<Requeued>, StoreError> {
        let requeued = self.shared.store.requeue(ids).await?;
        self.shared.work.notify_one();
        self.shared.dispatcher.relay_hint().committed();
        Ok(requeued)
    }

    /// Throws dead letters away; returns how many.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn discard(&self, ids: &[i64]) -> Result<u64, StoreError> {
        let discarded = self.shared.store.discard_dead_letters(ids).await?;
        self.shared.work.notify_one();
        Ok(discarded)
    }

    /// Stops in good order: takes nothing new, gives back what has not begun, waits for what
    /// runs, and takes the instance off the list. May be called again and from many tasks; every
    /// call returns when the service has stopped.
    ///
    /// # Errors
    /// When handlers had to be abandoned at the deadline, or the instance could not deregister.
    /// The service has stopped all the same.
    pub async fn shutdown(&self) -> Result<(), ShutdownError> {
        let tasks = {
            let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
            tasks.take()
        };
        let Some(tasks) = tasks else {
            self.shared.stop.reached(Phase::Ended).await;
            return Ok(());
        };
        let mut ending = Ending {
            phase: &self.phase,
            tasks: Some(tasks),
        };
        ending.enter(Phase::Draining);
        let abandoned = self.drain(&mut ending).await;
        self.shared.drop_sessions();
        let Shared {
            store,
            instance,
            config,
            ..
        } = &*self.shared;
        let deregistered = store.deregister(instance.id, config.lease).await;
        ending.enter(Phase::Ended);
        ending.finish().await;
        if abandoned > 0 {
            return Err(ShutdownError::Abandoned(abandoned));
        }
        deregistered.map_err(ShutdownError::Deregister)
    }

    /// Waits for running messages until the deadline, then abandons them; says how many.
    async fn drain(&self, ending: &mut Ending<'_>) -> usize {
        let deadline = Instant::now() + self.shared.config.shutdown_deadline;
        ending.join_intake(deadline).await;
        if self.empty_by(deadline).await {
            return 0;
        }
        let abandoned = self.shared.capacity.taken();
        ending.enter(Phase::Aborting);
        // Rolling back and giving back is quick unless the database is away; leases cover that.
        self.empty_by(Instant::now() + Duration::from_secs(2)).await;
        abandoned
    }

    async fn empty_by(&self, deadline: Instant) -> bool {
        loop {
            if self.shared.capacity.taken() == 0 && self.shared.held.all().is_empty() {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl<S: Store> Drop for App<S> {
    fn drop(&mut self) {
        self.phase.send_replace(Phase::Ended);
    }
}

/// Ends the actors even if the future of `shutdown` is dropped on the way.
struct Ending<'a> {
    phase: &'a watch::Sender<Phase>,
    tasks: Option<Tasks>,
}

impl Ending<'_> {
    fn enter(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    async fn join_intake(&mut self, deadline: Instant) {
        let Some(tasks) = &mut self.tasks else { return };
        for task in &mut tasks.intake {
            if tokio::time::timeout_at(deadline, &mut *task).await.is_err() {
                task.abort();
            }
        }
    }

    async fn finish(mut self) {
        let Some(tasks) = self.tasks.take() else {
            return;
        };
        // The completer keeps a sender alive through `Shared`; by now it has nothing to write.
        tasks.completer.abort();
        for task in tasks.support {
            // A support task that panicked was restarted by its supervisor; it ends here.
            let _ = tokio::time::timeout(Duration::from_secs(1), task).await;
        }
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if let Some(tasks) = self.tasks.take() {
            self.phase.send_replace(Phase::Ended);
            for task in tasks.intake {
                task.abort();
            }
            tasks.completer.abort();
        }
    }
}

/// Runs an actor and starts it again, after a pause, should it panic.
fn supervise<S, A, F>(shared: &Arc<Shared<S>>, name: &'static str, actor: A) -> JoinHandle<()>
where
    S: Store,
    A: Fn(Arc<Shared<S>>) -> F + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        let stop: Stop = shared.stop.clone();
        let mut patience = Patience::default();
        loop {
            let run = AssertUnwindSafe(actor(Arc::clone(&shared))).catch_unwind();
            let Err(panic) = run.await else { return };
            counters::add(&shared.counters.actor_restarts, 1);
            tracing::error!(
                actor = name,
                panic = panic_text(&*panic),
                "an actor panicked; it starts again"
            );
            patience.pause(&stop).await;
            if stop.draining() {
                return;
            }
        }
    })
}
