//! Row locks, held by transactions until they end.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;
use uuid::Uuid;

/// Identity of a transaction.
pub(super) type Tx = u64;

/// What can be locked.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Unit {
    /// An unordered inbox row.
    Row(Uuid, String),
    /// A stream in its lane.
    Gate(String, Uuid),
    /// The key of a command.
    Command(String, String),
    /// A message for a destination that is being written to the outbox.
    Outbox(Uuid, String),
    /// A row of the user's own.
    Value(String, String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lock {
    holder: Tx,
    /// Taken in order to remove the gate: nobody may put quiet rows behind it.
    closing: bool,
}

#[derive(Debug)]
struct Open {
    client: u64,
    /// By the machine's clock: a jump of the database's clock makes nobody idle.
    last_active: Instant,
    idle_limit: Option<Duration>,
}

/// Open transactions and what they have locked.
#[derive(Debug, Default)]
pub(super) struct Locks {
    next: Tx,
    open: HashMap<Tx, Open>,
    held: HashMap<Unit, Lock>,
    waits: HashMap<Tx, Tx>,
}

/// What asking for a lock came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    Granted,
    /// Held by another transaction.
    Held(Tx),
}

impl Locks {
    pub(super) fn begin(&mut self, client: u64, idle_limit: Option<Duration>) -> Tx {
        self.next += 1;
        let open = Open {
            client,
            last_active: Instant::now(),
            idle_limit,
        };
        self.open.insert(self.next, open);
        self.next
    }

    /// Ends a transaction and frees its locks.
    pub(super) fn end(&mut self, tx: Tx) {
        self.open.remove(&tx);
        self.waits.remove(&tx);
        self.held.retain(|_, lock| lock.holder != tx);
    }

    /// Whether the transaction is still open; notes that it does something.
    pub(super) fn touch(&mut self, tx: Tx) -> bool {
        match self.open.get_mut(&tx) {
            Some(open) => {
                open.last_active = Instant::now();
                true
            }
            None => false,
        }
    }

    /// Ends transactions that have done nothing for longer than they may.
    pub(super) fn end_idle(&mut self) {
        self.end_where(|open| {
            open.idle_limit
                .is_some_and(|limit| open.last_active.elapsed() >= limit)
        });
    }

    /// Ends all transactions of a process.
    pub(super) fn end_client(&mut self, client: u64) {
        self.end_where(|open| open.client == client);
    }

    /// Ends all transactions, as a restart of the server does.
    pub(super) fn end_all(&mut self) {
        self.end_where(|_| true);
    }

    fn end_where(&mut self, over: impl Fn(&Open) -> bool) {
        let ended: Vec<_> = self
            .open
            .iter()
            .filter(|(_, open)| over(open))
            .map(|(tx, _)| *tx)
            .collect();
        for tx in ended {
            self.end(tx);
        }
    }

    /// Who else holds the lock.
    pub(super) fn holder(&self, unit: &Unit, but: Option<Tx>) -> Option<Tx> {
        self.held
            .get(unit)
            .map(|lock| lock.holder)
            .filter(|holder| Some(*holder) != but)
    }

    /// Whether nobody holds any lock.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Whether anybody holds the lock.
    pub(super) fn is_locked(&self, unit: &Unit) -> bool {
        self.held.contains_key(unit)
    }

    /// Whether a gate is about to be removed.
    pub(super) fn is_closing(&self, unit: &Unit) -> bool {
        self.held.get(unit).is_some_and(|lock| lock.closing)
    }

    /// Takes the lock unless another transaction has it.
    pub(super) fn take(&mut self, unit: Unit, tx: Tx) -> Asked {
        if let Some(holder) = self.holder(&unit, Some(tx)) {
            return Asked::Held(holder);
        }
        self.held.entry(unit).or_insert(Lock {
            holder: tx,
            closing: false,
        });
        Asked::Granted
    }

    /// Makes a lock that the transaction holds one that keeps quiet rows away.
    pub(super) fn close(&mut self, unit: &Unit) {
        if let Some(lock) = self.held.get_mut(unit) {
            lock.closing = true;
        }
    }

    /// Notes that a transaction waits for another; `false` if that could never end.
    pub(super) fn wait(&mut self, tx: Tx, holder: Tx) -> bool {
        let mut next = Some(holder);
        while let Some(waiting) = next {
            if waiting == tx {
                self.waits.remove(&tx);
                return false;
            }
            next = self.waits.get(&waiting).copied();
        }
        self.waits.insert(tx, holder);
        true
    }

    pub(super) fn waited(&mut self, tx: Tx) {
        self.waits.remove(&tx);
    }
}
