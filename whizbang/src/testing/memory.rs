//! The store itself: one set of tables behind one lock, and a handle for each process.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::{
    client::{Client, Verdict},
    clock::{Clock, Time},
    faults::{Faults, NoFaults, Operation},
    flaw::Flaw,
    locks::Tx,
    tables::Tables,
};
use crate::{StoreError, StoreErrorKind, store::StoreResult};

/// How long a call waits for a lock before it looks again by itself, since a lock may also end
/// because its transaction was idle for too long.
const LOCK_POLL: Duration = Duration::from_millis(500);

/// A [`Store`](crate::store::Store) in memory, for tests and simulation.
///
/// Clones share the database and count as the same process; [`client`](Self::client) gives a
/// handle for another process, whose calls can be made to fail. Time is tokio's, so under paused
/// time leases and retries take no real time.
///
/// ```
/// use whizbang::testing::{MemoryStore, NoFaults};
/// let store = MemoryStore::new();
/// let other_process = store.client(NoFaults);
/// other_process.crash();
/// assert!(other_process.is_crashed() && !store.is_crashed());
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    pub(super) database: Arc<Database>,
    pub(super) client: Arc<Client>,
}

pub(super) struct Database {
    pub(super) clock: Clock,
    tables: Mutex<Tables>,
    /// Told whenever locks become free.
    freed: Notify,
    clients: AtomicU64,
    away_until: Mutex<Option<Instant>>,
}

/// How far one look at the tables came.
pub(super) enum Turn<T> {
    Done(T),
    /// A transaction holds a lock that is needed.
    Held(Tx),
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("client", &self.client.id)
            .field("crashed", &self.is_crashed())
            .finish_non_exhaustive()
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// An empty database, and the handle of a process to whose calls nothing happens.
    pub fn new() -> Self {
        let database = Database {
            clock: Clock::new(),
            tables: Mutex::default(),
            freed: Notify::new(),
            clients: AtomicU64::new(0),
            away_until: Mutex::default(),
        };
        Self::handle(Arc::new(database), NoFaults, None)
    }

    /// A handle for another process on the same database.
    pub fn client(&self, faults: impl Faults) -> Self {
        let limit = self.client.connections.as_ref().map(|(limit, _)| *limit);
        Self::handle(Arc::clone(&self.database), faults, limit)
    }

    /// Gives the process so many connections; to be called before anything else.
    #[must_use]
    pub fn limited_to(&self, connections: usize) -> Self {
        Self {
            client: Arc::new(self.client.limited_to(connections)),
            database: Arc::clone(&self.database),
        }
    }

    fn handle(database: Arc<Database>, faults: impl Faults, connections: Option<usize>) -> Self {
        let id = database.clients.fetch_add(1, Ordering::Relaxed);
        Self {
            client: Arc::new(Client::new(id, Arc::new(faults), connections)),
            database,
        }
    }

    /// Moves the database's clock ahead: leases run out and retries fall due.
    pub fn advance(&self, time: Duration) {
        self.database.clock.advance(time);
    }

    /// Ends the process of this handle: none of its calls returns any more.
    pub fn crash(&self) {
        self.client.crash();
        self.database.lock().locks.end_client(self.client.id);
        self.database.freed.notify_waiters();
    }

    /// Whether the process of this handle has ended.
    pub fn is_crashed(&self) -> bool {
        self.client.is_crashed()
    }

    /// Stops the process of this handle for a time; then it goes on as if nothing had happened.
    pub fn stall(&self, time: Duration) {
        self.client.stall(time);
    }

    /// Returns once the process of this handle runs; never, if it has ended. What stands for the
    /// rest of the process in a simulation, such as its connection to a broker, waits for this.
    pub async fn running(&self) {
        self.client.standing().await;
    }

    /// Restarts the database: it rolls back what is open, cuts all connections, and refuses calls
    /// of every process until it is back after this time.
    pub fn restart_database(&self, down: Duration) {
        let mut tables = self.database.lock();
        tables.generation += 1;
        tables.locks.end_all();
        drop(tables);
        *self.database.lock_away() = Some(Instant::now() + down);
        self.database.freed.notify_waiters();
    }

    /// Breaks a promise from now on, to see that a check or a simulation notices; `None` keeps
    /// all of them again.
    pub fn break_promise(&self, flaw: Option<Flaw>) {
        self.database.lock().flaw = flaw;
    }

    /// One call that is a transaction of its own.
    pub(super) async fn call<T>(
        &self,
        operation: Operation,
        effect: impl FnMut(&mut Tables, Time) -> Turn<T>,
    ) -> StoreResult<T> {
        self.proceed(self.client.before(operation).await, operation)
            .await?;
        self.reachable(operation)?;
        let value = self.perform(effect).await;
        self.proceed(self.client.after(operation).await, operation)
            .await?;
        Ok(value)
    }

    /// A call that needs no lock.
    pub(super) async fn simple<T>(
        &self,
        operation: Operation,
        mut effect: impl FnMut(&mut Tables, Time) -> T,
    ) -> StoreResult<T> {
        self.call(operation, |tables, now| Turn::Done(effect(tables, now)))
            .await
    }

    async fn proceed(&self, verdict: Verdict, operation: Operation) -> StoreResult<()> {
        match verdict {
            Verdict::Go => Ok(()),
            Verdict::Lost(_) | Verdict::Late(_) => Err(lost(operation)),
            Verdict::Conflict => Err(conflict(operation)),
            Verdict::Crash => self.die().await,
        }
    }

    /// Ends the process in the middle of a call.
    pub(super) async fn die<T>(&self) -> T {
        self.crash();
        std::future::pending().await
    }

    /// Fails while the database is away.
    pub(super) fn reachable(&self, operation: Operation) -> StoreResult<()> {
        let away = *self.database.lock_away();
        match away {
            Some(until) if until > Instant::now() => Err(lost(operation)),
            _ => Ok(()),
        }
    }

    async fn perform<T>(&self, mut effect: impl FnMut(&mut Tables, Time) -> Turn<T>) -> T {
        loop {
            let freed = self.database.freed.notified();
            match self.database.look(&mut effect) {
                Turn::Done(value) => return value,
                Turn::Held(_) => {
                    // Both ends of the wait mean: look again.
                    let _ = tokio::time::timeout(LOCK_POLL, freed).await;
                    self.client.standing().await;
                }
            }
        }
    }
}

impl Database {
    pub(super) fn lock(&self) -> MutexGuard<'_, Tables> {
        // Nothing that can panic runs under the lock.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_away(&self) -> MutexGuard<'_, Option<Instant>> {
        self.away_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// One look at the tables, at one moment.
    pub(super) fn look<T>(&self, effect: impl FnOnce(&mut Tables, Time) -> T) -> T {
        let mut tables = self.lock();
        let now = self.clock.now();
        tables.locks.end_idle();
        effect(&mut tables, now)
    }

    /// Waits until locks become free, or a moment.
    pub(super) fn freed(&self) -> impl Future<Output = ()> + Send + '_ {
        let freed = self.freed.notified();
        async move {
            // Both ends of the wait mean: look again.
            let _ = tokio::time::timeout(LOCK_POLL, freed).await;
        }
    }

    /// Ends a transaction without its writes.
    pub(super) fn abandon(&self, tx: Tx) {
        self.lock().locks.end(tx);
        self.freed.notify_waiters();
    }

    /// Tells waiting calls that locks became free.
    pub(super) fn announce(&self) {
        self.freed.notify_waiters();
    }
}

/// The connection broke.
pub(super) fn lost(operation: Operation) -> StoreError {
    StoreError::message(
        StoreErrorKind::Unavailable,
        format!("the connection was lost during {operation:?}"),
    )
}

/// Another transaction was in the way.
pub(super) fn conflict(operation: Operation) -> StoreError {
    StoreError::message(
        StoreErrorKind::Conflict,
        format!("another transaction was in the way of {operation:?}"),
    )
}
