//! What all actors of a running service share.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rand::RngExt;
use tokio::{
    sync::{Notify, RwLock, Semaphore, mpsc},
    time::Instant,
};

use crate::{
    Dispatcher, RuntimeConfig, StoreError, StoreErrorKind,
    handler::States,
    registry::{Handler, Handlers},
    runtime::{
        breaker::{Breaker, Gate},
        capacity::{Capacity, Share},
        completer::Finished,
        counters::Counters,
        held::HeldLeases,
        stop::{Phase, Stop},
    },
    store::{HandOver, Instance, Room, Store},
};

/// A handler with its live state in this process.
pub(crate) struct HandlerState<S: Store> {
    pub(crate) handler: Arc<Handler<S>>,
    /// Messages of this handler that may run at once.
    pub(crate) permits: Arc<Semaphore>,
    pub(crate) breaker: Breaker,
}

/// What all actors share. Held by every task; the app ends them through `stop`.
pub(crate) struct Shared<S: Store> {
    pub(crate) store: S,
    pub(crate) instance: Instance,
    pub(crate) config: RuntimeConfig,
    pub(crate) concurrency: usize,
    pub(crate) handlers: Arc<Handlers<S>>,
    pub(crate) live: HashMap<&'static str, HandlerState<S>>,
    pub(crate) states: Arc<States>,
    pub(crate) dispatcher: Dispatcher<S>,
    pub(crate) stop: Stop,
    pub(crate) counters: Counters,
    pub(crate) held: Arc<HeldLeases>,
    pub(crate) capacity: Arc<Capacity>,
    /// Messages that may run at once in this process.
    pub(crate) permits: Arc<Semaphore>,
    /// Read by ordinary runs, written by a suspect that must run alone.
    pub(crate) alone: RwLock<()>,
    /// Wakes the worker: rows were stored without being handed over, or room became free.
    pub(crate) work: Notify,
    /// The last claim came back full: there is a backlog, so nothing is handed over past it.
    pub(crate) backlog: AtomicBool,
    /// Sends completions of handlers without transaction to the completer.
    pub(crate) finished: mpsc::Sender<Finished>,
    /// Connections at rest, kept for the next run.
    sessions: Mutex<Vec<S::Session>>,
    warm_sessions: usize,
    /// Set while the database is away.
    pub(crate) outage: AtomicBool,
    pub(crate) unanswered: Unanswered,
}

/// What `Shared` is built from.
pub(crate) struct SharedParts<S: Store> {
    pub(crate) store: S,
    pub(crate) instance: Instance,
    pub(crate) config: RuntimeConfig,
    pub(crate) handlers: Arc<Handlers<S>>,
    pub(crate) states: Arc<States>,
    pub(crate) dispatcher: Dispatcher<S>,
    pub(crate) stop: Stop,
    pub(crate) finished: mpsc::Sender<Finished>,
}

impl<S: Store> Shared<S> {
    pub(crate) fn new(parts: SharedParts<S>) -> Arc<Self> {
        let connections = parts.store.connection_limit();
        let concurrency = parts.config.effective_concurrency(connections);
        let live = parts
            .handlers
            .iter()
            .map(|handler| {
                let limit = handler.policy.concurrency.unwrap_or(concurrency);
                let state = HandlerState {
                    handler: Arc::clone(handler),
                    permits: Arc::new(Semaphore::new(limit.max(1))),
                    breaker: Breaker::new(parts.config.breaker),
                };
                (handler.spec.name, state)
            })
            .collect();
        // Kept connections must leave some for claims, the relay and the user's own code.
        let warm_sessions = connections.map_or(concurrency, |limit| {
            if limit >= concurrency + 2 {
                concurrency
            } else {
                0
            }
        });
        Arc::new(Self {
            capacity: Capacity::new(parts.config.claim_batch.max(concurrency)),
            permits: Arc::new(Semaphore::new(concurrency)),
            concurrency,
            live,
            warm_sessions,
            store: parts.store,
            instance: parts.instance,
            config: parts.config,
            handlers: parts.handlers,
            states: parts.states,
            dispatcher: parts.dispatcher,
            stop: parts.stop,
            finished: parts.finished,
            counters: Counters::default(),
            held: Arc::default(),
            alone: RwLock::new(()),
            work: Notify::new(),
            backlog: AtomicBool::new(false),
            sessions: Mutex::default(),
            outage: AtomicBool::new(false),
            unanswered: Unanswered::default(),
        })
    }

    /// Room for rows of each handler that may run now.
    pub(crate) fn room(&self) -> Vec<Room> {
        let batch = self.capacity.limit();
        let shares = self.live.values().filter_map(|state| {
            let spec = &state.handler.spec;
            let limit = match state.breaker.gate() {
                Gate::Shut => return None,
                Gate::Trial => 1,
                // A limited handler gets no more than it can begin soon, so that others in the
                // fleet get the rest.
                Gate::Open => state
                    .handler
                    .policy
                    .concurrency
                    .map_or(batch, |limit| (limit * 2).min(batch)),
            };
            Some(Share {
                handler: spec.name,
                lane: spec.lane(),
                limit,
            })
        });
        let mut room = self.capacity.room(shares);
        // Claims serve handlers in this order up to their total: no handler always comes first.
        if !room.is_empty() {
            let turn = rand::rng().random_range(0..room.len());
            room.sort_by(|one, other| one.handler.cmp(&other.handler));
            room.rotate_left(turn);
        }
        room
    }

    /// An offer to run what is stored, if this process has nothing better to do.
    pub(crate) fn hand_over(&self) -> Option<HandOver> {
        if self.stop.draining() || self.backlog.load(Ordering::Relaxed) {
            return None;
        }
        let room = self.room();
        (!room.is_empty()).then(|| HandOver {
            instance: self.instance.id,
            token: uuid::Uuid::now_v7(),
            lease: self.config.lease,
            room,
        })
    }

    /// A connection at rest, if one is kept.
    pub(crate) fn warm_session(&self) -> Option<S::Session> {
        self.lock_sessions().pop()
    }

    /// Keeps a connection for the next run, or gives it back to the pool.
    pub(crate) fn keep_session(&self, session: S::Session) {
        let mut sessions = self.lock_sessions();
        if sessions.len() < self.warm_sessions && !self.stop.draining() {
            sessions.push(session);
        } else {
            drop(sessions);
            self.store.give_back(session);
        }
    }

    /// Gives all kept connections back to the pool.
    pub(crate) fn drop_sessions(&self) {
        let sessions = std::mem::take(&mut *self.lock_sessions());
        for session in sessions {
            self.store.give_back(session);
        }
    }

    /// Closes all kept connections without a word: the pool would wait for the answer of one that
    /// has gone silent.
    fn discard_sessions(&self) {
        let sessions = std::mem::take(&mut *self.lock_sessions());
        sessions.into_iter().for_each(S::discard);
    }

    fn lock_sessions(&self) -> std::sync::MutexGuard<'_, Vec<S::Session>> {
        // Nothing that can panic runs under the lock.
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers the token of a call that may have leased rows although its answer was lost.
    pub(crate) fn note_unanswered<T>(
        &self,
        result: &Result<T, StoreError>,
        token: Option<uuid::Uuid>,
    ) {
        if let (Err(error), Some(token)) = (result, token)
            && error.kind == StoreErrorKind::Unavailable
        {
            self.unanswered.add(token);
            self.work.notify_one();
        }
    }

    /// Notes whether the database answers, so that health shows it and the log says it once.
    pub(crate) fn note<T>(&self, result: &Result<T, StoreError>) {
        match result {
            Ok(_) => {
                if self.outage.swap(false, Ordering::Relaxed) {
                    tracing::info!("the database answers again");
                }
            }
            Err(error) if error.kind == StoreErrorKind::Unavailable => {
                // Kept connections may have gone silent as well, and hold places in the pool.
                self.discard_sessions();
                if !self.outage.swap(true, Ordering::Relaxed) {
                    let error = crate::error_chain(error);
                    tracing::warn!(error, "the database is away; waiting for it");
                }
            }
            Err(_) => {}
        }
    }
}

/// How often the leases of a lost answer are looked for: the call may still be under way on the
/// server, and commit after the first look.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Tokens of calls that may have leased rows, and whose answer was lost.
#[derive(Debug, Default)]
pub(crate) struct Unanswered(Mutex<Vec<Lost>>);

#[derive(Debug)]
struct Lost {
    token: uuid::Uuid,
    since: Instant,
    looked: Option<Instant>,
}

impl Unanswered {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Lost>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, token: uuid::Uuid) {
        self.lock().push(Lost {
            token,
            since: Instant::now(),
            looked: None,
        });
    }

    /// Those whose leases may still hold and were not looked for a moment ago.
    pub(crate) fn tokens(&self, lease: Duration) -> Vec<uuid::Uuid> {
        let mut lost = self.lock();
        lost.retain(|one| one.since.elapsed() < lease);
        let due = |one: &&Lost| one.looked.is_none_or(|at| at.elapsed() >= LOOK_AGAIN);
        lost.iter().filter(due).map(|one| one.token).collect()
    }

    /// They were looked for.
    pub(crate) fn looked(&self, tokens: &[uuid::Uuid]) {
        let now = Instant::now();
        for one in self.lock().iter_mut() {
            if tokens.contains(&one.token) {
                one.looked = Some(now);
            }
        }
    }
}

/// The pauses of an actor while something is away: doubled from 50 ms to 5 s, with jitter.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    failures: u32,
}

impl Patience {
    /// Everything works.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// The next pause.
    pub(crate) fn next_pause(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let ceiling = crate::Backoff::new(Duration::from_millis(50), Duration::from_secs(5))
            .ceiling(self.failures);
        ceiling.mul_f64(rand::rng().random_range(0.5..=1.0))
    }

    /// Sleeps the next pause, or until the service drains.
    pub(crate) async fn pause(&mut self, stop: &Stop) {
        let pause = self.next_pause();
        stop.unless(Phase::Draining, tokio::time::sleep(pause))
            .await;
    }
}
