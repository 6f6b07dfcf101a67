//! What all parts of one simulation share.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use tokio::{sync::watch, time::Instant};
use uuid::Uuid;
use whizbang::{Dispatcher, testing::MemoryStore};

use super::{
    broker::Broker,
    chance::Dice,
    plan::{Plan, STORM},
};

/// One simulation. Clones share it; handlers take it as their state.
#[derive(Clone)]
pub(crate) struct World(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) seed: u64,
    pub(crate) plan: Plan,
    /// Sees the database without faults.
    pub(crate) store: MemoryStore,
    pub(crate) broker: Broker,
    /// What handlers decide by.
    pub(crate) handlers: Dice,
    pub(crate) ends: Instant,
    calm: AtomicBool,
    executions: AtomicU64,
    /// Messages that the broker took from foreign services, with their types.
    pub(crate) accepted: Mutex<Vec<(Uuid, String)>>,
    /// Runs of handlers without transaction, whose effects are outside the database.
    pub(crate) outside: Mutex<BTreeMap<(String, Uuid), u64>>,
    /// Replies to executed commands, by key.
    pub(crate) replies: Mutex<BTreeMap<String, Vec<u64>>>,
    /// Scheduled messages that somebody tried to cancel: what the store answered.
    pub(crate) cancelled: Mutex<HashMap<Uuid, Option<bool>>>,
    /// Set once the place with all handlers has started.
    complete: watch::Sender<bool>,
    dispatchers: Mutex<BTreeMap<u64, Dispatcher<MemoryStore>>>,
}

impl std::ops::Deref for World {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let store = MemoryStore::new();
        store.keep_journal();
        Self(Arc::new(Inner {
            seed,
            plan: Plan::new(seed),
            broker: Broker::new(seed),
            handlers: Dice::new(seed, 2),
            ends: Instant::now() + STORM,
            calm: AtomicBool::new(false),
            executions: AtomicU64::new(0),
            accepted: Mutex::default(),
            outside: Mutex::default(),
            replies: Mutex::default(),
            cancelled: Mutex::default(),
            complete: watch::Sender::new(false),
            dispatchers: Mutex::default(),
            store,
        }))
    }

    /// Whether the faults have stopped.
    pub(crate) fn is_calm(&self) -> bool {
        self.calm.load(Ordering::Acquire)
    }

    /// Stops the faults.
    pub(crate) fn calm_down(&self) {
        self.calm.store(true, Ordering::Release);
        self.broker.calm_down();
    }

    /// The broker has taken a message from a foreign service.
    pub(crate) fn accepted(&self, message: Uuid, message_type: &str) {
        lock(&self.accepted).push((message, message_type.to_owned()));
    }

    /// A number that no other execution has.
    pub(crate) fn execution(&self) -> u64 {
        self.executions.fetch_add(1, Ordering::Relaxed)
    }

    fn dispatchers(&self) -> MutexGuard<'_, BTreeMap<u64, Dispatcher<MemoryStore>>> {
        lock(&self.dispatchers)
    }

    /// An instance is there for clients, or is gone.
    pub(crate) fn serve(&self, instance: u64, dispatcher: Option<Dispatcher<MemoryStore>>) {
        match dispatcher {
            Some(dispatcher) => {
                self.dispatchers().insert(instance, dispatcher);
                if instance == 0 {
                    self.complete.send_replace(true);
                }
            }
            None => drop(self.dispatchers().remove(&instance)),
        }
    }

    /// Waits until all handlers have subscribed. What came before would rightly be given to fewer.
    pub(crate) async fn complete(&self) {
        let mut complete = self.complete.subscribe();
        // The sender lives as long as the world.
        let _ = complete.wait_for(|complete| *complete).await;
    }

    /// Any instance that is there.
    pub(crate) fn dispatcher(&self, dice: &Dice) -> Option<Dispatcher<MemoryStore>> {
        let dispatchers = self.dispatchers();
        let there: Vec<_> = dispatchers.values().collect();
        (!there.is_empty()).then(|| (*dice.pick(&there)).clone())
    }
}

/// Nothing that can panic runs under these locks.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
