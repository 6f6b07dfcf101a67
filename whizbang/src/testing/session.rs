//! Connections, transactions, and what a handler can write through them.

use std::{fmt, time::Duration};

use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;
use uuid::Uuid;

use super::{
    client::Verdict,
    clock::Time,
    faults::Operation,
    locks::{Asked, Tx, Unit},
    memory::{MemoryStore, Turn, conflict, lost},
    tables::Tables,
    writes::{self, Write},
};
use crate::{
    InTransaction, StoreError, StoreErrorKind,
    store::{Isolation, StoreResult, TransactionOptions},
};

/// Time beyond a handler's timeout before the server ends an idle transaction by itself.
const IDLE_MARGIN: Duration = Duration::from_secs(5);

/// A connection taken from the pool.
#[derive(Debug)]
pub struct MemorySession {
    pub(super) connection: MemoryConnection,
    _permit: Option<OwnedSemaphorePermit>,
}

/// What a handler's statements run on: a few calls on tables of the user's own.
///
/// Writes become visible to others when the transaction commits; reads see the transaction's own
/// writes.
pub struct MemoryConnection {
    store: MemoryStore,
    generation: u64,
    broken: bool,
    open: Option<Open>,
}

/// An open transaction.
pub(super) struct Open {
    pub(super) tx: Tx,
    pub(super) fence: Option<Uuid>,
    pub(super) isolation: Isolation,
    /// Commits that are visible to it; set by its first statement.
    pub(super) snapshot: Option<u64>,
    pub(super) writes: Vec<Write>,
    pub(super) aborted: bool,
    /// Commands whose keys were written in it and that have not ended, by scope and key.
    pub(super) commands: Vec<(String, String)>,
}

/// A row with this key was there already, as an `INSERT` finds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("duplicate key value violates unique constraint `{constraint}`")]
pub struct UniqueViolation {
    /// The table's name followed by `_pkey`.
    pub constraint: String,
}

/// An open transaction, or a savepoint inside one. Dropping it rolls back.
pub struct MemoryTransaction<'s> {
    pub(super) connection: &'s mut MemoryConnection,
    savepoint: Option<Savepoint>,
    ended: bool,
}

struct Savepoint {
    writes: usize,
    commands: usize,
    aborted: bool,
}

impl fmt::Debug for MemoryConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryConnection")
            .field("broken", &self.broken)
            .field("in_transaction", &self.open.is_some())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for MemoryTransaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryTransaction")
            .field("connection", &self.connection)
            .field("nested", &self.savepoint.is_some())
            .finish_non_exhaustive()
    }
}

impl MemorySession {
    pub(super) fn new(store: MemoryStore, permit: Option<OwnedSemaphorePermit>) -> Self {
        let generation = store.database.lock().generation;
        Self {
            connection: MemoryConnection {
                store,
                generation,
                broken: false,
                open: None,
            },
            _permit: permit,
        }
    }
}

impl InTransaction<MemoryStore> for MemoryTransaction<'_> {
    fn transaction_connection(&mut self) -> &mut MemoryConnection {
        self.connection
    }
}

impl<'s> MemoryTransaction<'s> {
    pub(super) fn new(connection: &'s mut MemoryConnection) -> Self {
        Self {
            connection,
            savepoint: None,
            ended: false,
        }
    }

    pub(super) fn nested(connection: &'s mut MemoryConnection) -> StoreResult<Self> {
        let savepoint = match &connection.open {
            Some(open) if open.aborted => return Err(aborted()),
            Some(open) => Savepoint {
                writes: open.writes.len(),
                commands: open.commands.len(),
                aborted: open.aborted,
            },
            None => return Err(no_transaction()),
        };
        Ok(Self {
            connection,
            savepoint: Some(savepoint),
            ended: false,
        })
    }

    pub(super) async fn commit(mut self) -> StoreResult<()> {
        self.ended = true;
        if self.savepoint.is_none() {
            return self.connection.commit().await;
        }
        match &self.connection.open {
            Some(open) if open.aborted => {
                self.ended = false;
                Err(aborted())
            }
            Some(_) => Ok(()),
            None => Err(no_transaction()),
        }
    }

    pub(super) async fn roll_back(mut self) -> StoreResult<()> {
        if self.savepoint.is_some() {
            return Ok(());
        }
        self.ended = true;
        self.connection.roll_back().await
    }
}

impl Drop for MemoryTransaction<'_> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        match (&self.savepoint, &mut self.connection.open) {
            (Some(savepoint), Some(open)) => {
                open.writes.truncate(savepoint.writes);
                open.commands.truncate(savepoint.commands);
                open.aborted = savepoint.aborted;
            }
            (Some(_), None) => {}
            (None, _) => self.connection.abandon(),
        }
    }
}

impl Drop for MemoryConnection {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl MemoryConnection {
    /// Writes a row of a table by its key.
    ///
    /// # Errors
    /// When the connection is lost, or the transaction has failed before.
    pub async fn put(&mut self, table: &str, key: &str, value: Value) -> StoreResult<()> {
        self.locked(table, key, |open| {
            open.writes.push(Write::Put {
                table: table.to_owned(),
                key: key.to_owned(),
                value: Some(value.clone()),
            });
        })
        .await
    }

    /// Adds a row to a table, unless its key is taken.
    ///
    /// # Errors
    /// As [`put`](Self::put); a taken key is a [`UniqueViolation`], found among the sources.
    pub async fn insert(&mut self, table: &str, key: &str, value: Value) -> StoreResult<()> {
        if self.get_for_update(table, key).await?.is_none() {
            return self.put(table, key, value).await;
        }
        let constraint = format!("{table}_pkey");
        self.abort();
        Err(StoreError::new(
            StoreErrorKind::Other,
            format!("could not insert into `{table}`"),
            UniqueViolation { constraint },
        ))
    }

    /// Removes a row of a table.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub async fn remove(&mut self, table: &str, key: &str) -> StoreResult<()> {
        self.locked(table, key, |open| {
            open.writes.push(Write::Put {
                table: table.to_owned(),
                key: key.to_owned(),
                value: None,
            });
        })
        .await
    }

    /// Reads a row of a table.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub async fn get(&mut self, table: &str, key: &str) -> StoreResult<Option<Value>> {
        self.statement(Operation::Statement, |tables, open, _| {
            Turn::Done(Ok(read(tables, open, table, key)))
        })
        .await
    }

    /// Reads a row of a table and keeps others from writing it until the transaction ends, as
    /// `SELECT … FOR UPDATE` does.
    ///
    /// # Errors
    /// As [`put`](Self::put); a deadlock is a conflict.
    pub async fn get_for_update(&mut self, table: &str, key: &str) -> StoreResult<Option<Value>> {
        self.locked(table, key, |_| {}).await?;
        self.get(table, key).await
    }

    /// Adds a row to a list, whose order is that of the commits.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub async fn append(&mut self, table: &str, row: Value) -> StoreResult<()> {
        self.statement(Operation::Statement, |_, open, _| {
            open.writes.push(Write::Append {
                table: table.to_owned(),
                row: row.clone(),
            });
            Turn::Done(Ok(()))
        })
        .await
    }

    /// Fails, and with it the transaction, as a statement with a mistake does.
    ///
    /// # Errors
    /// Always.
    pub async fn fail(&mut self) -> StoreResult<()> {
        self.statement(Operation::Statement, |_, _, _| {
            Turn::Done(Err(StoreError::message(
                StoreErrorKind::Other,
                "the statement failed, as it was asked to",
            )))
        })
        .await
    }

    /// Ends the transaction behind the framework's back, as a `COMMIT` in a handler does.
    ///
    /// # Errors
    /// As any commit.
    pub async fn stray_commit(&mut self) -> StoreResult<()> {
        self.commit().await
    }

    /// Whether a transaction is open.
    pub fn is_in_transaction(&self) -> bool {
        self.open.is_some()
    }

    async fn locked(
        &mut self,
        table: &str,
        key: &str,
        effect: impl Fn(&mut Open) + Send + Sync,
    ) -> StoreResult<()> {
        self.statement(Operation::Statement, |tables, open, _| {
            let unit = Unit::Value(table.to_owned(), key.to_owned());
            match tables.locks.take(unit, open.tx) {
                Asked::Held(holder) => Turn::Held(holder),
                Asked::Granted => {
                    effect(open);
                    Turn::Done(Ok(()))
                }
            }
        })
        .await
    }

    pub(super) async fn begin(&mut self, options: &TransactionOptions) -> StoreResult<()> {
        let operation = Operation::Begin;
        self.check(self.store.client.before(operation).await, operation)
            .await?;
        let idle = (!options.timeout.is_zero()).then(|| options.timeout + IDLE_MARGIN);
        let client = self.store.client.id;
        let tx = self
            .store
            .database
            .look(|tables, _| tables.locks.begin(client, idle));
        self.open = Some(Open {
            tx,
            fence: Some(options.fence),
            isolation: options.isolation,
            snapshot: None,
            writes: Vec::new(),
            aborted: false,
            commands: Vec::new(),
        });
        self.check(self.store.client.after(operation).await, operation)
            .await
    }

    /// One statement, in the open transaction or in one of its own.
    pub(super) async fn statement<T>(
        &mut self,
        operation: Operation,
        mut effect: impl FnMut(&mut Tables, &mut Open, Time) -> Turn<StoreResult<T>> + Send,
    ) -> StoreResult<T> {
        self.check(self.store.client.before(operation).await, operation)
            .await?;
        let alone = self.open.is_none();
        if alone {
            self.open = Some(self.unfenced());
        }
        let answer = self.run(operation, &mut effect).await;
        match &answer {
            Ok(_) if alone => self.apply_open(operation)?,
            Err(_) if alone => self.abandon(),
            Err(_) => self.abort(),
            Ok(_) => {}
        }
        self.check(self.store.client.after(operation).await, operation)
            .await?;
        answer
    }

    fn unfenced(&self) -> Open {
        let client = self.store.client.id;
        let tx = self
            .store
            .database
            .look(|tables, _| tables.locks.begin(client, None));
        Open {
            tx,
            fence: None,
            isolation: Isolation::ReadCommitted,
            snapshot: None,
            writes: Vec::new(),
            aborted: false,
            commands: Vec::new(),
        }
    }

    async fn run<T>(
        &mut self,
        operation: Operation,
        effect: &mut (impl FnMut(&mut Tables, &mut Open, Time) -> Turn<StoreResult<T>> + Send),
    ) -> StoreResult<T> {
        let Some(open) = &mut self.open else {
            return Err(no_transaction());
        };
        if open.aborted {
            return Err(aborted());
        }
        loop {
            let freed = self.store.database.freed();
            let turn = self.store.database.look(|tables, now| {
                if !tables.locks.touch(open.tx) {
                    return Turn::Done(Err(lost(operation)));
                }
                tables.locks.waited(open.tx);
                open.snapshot.get_or_insert(tables.commits);
                match effect(tables, open, now) {
                    Turn::Held(holder) if !tables.locks.wait(open.tx, holder) => {
                        Turn::Done(Err(conflict(operation)))
                    }
                    turn => turn,
                }
            });
            match turn {
                Turn::Done(answer) => return answer,
                Turn::Held(_) => freed.await,
            }
        }
    }

    /// Acts on the fault of a call on this connection.
    async fn check(&mut self, verdict: Verdict, operation: Operation) -> StoreResult<()> {
        if self.broken || self.generation != self.store.database.lock().generation {
            self.break_off(Duration::ZERO);
            return Err(lost(operation));
        }
        self.store.reachable(operation)?;
        match verdict {
            Verdict::Go => Ok(()),
            Verdict::Crash => self.store.die().await,
            Verdict::Conflict => {
                self.abort();
                Err(conflict(operation))
            }
            Verdict::Lost(lingers) => {
                self.break_off(lingers);
                Err(lost(operation))
            }
            Verdict::Late(_) => {
                self.break_off(Duration::ZERO);
                Err(lost(operation))
            }
        }
    }

    async fn commit(&mut self) -> StoreResult<()> {
        let operation = Operation::Commit;
        let verdict = self.store.client.before(operation).await;
        if let Verdict::Late(time) = verdict {
            self.commit_late(time);
        }
        self.check(verdict, operation).await.map_err(unknown)?;
        if self.open.as_ref().is_some_and(|open| open.aborted) {
            // What PostgreSQL does: COMMIT rolls a failed transaction back and reports success.
            self.abandon();
        } else {
            self.apply_open(operation).map_err(unknown)?;
        }
        self.check(self.store.client.after(operation).await, operation)
            .await
            .map_err(unknown)
    }

    /// Lets the commit go through after the connection is gone.
    fn commit_late(&mut self, time: Duration) {
        let Some(open) = self.open.take() else { return };
        let store = self.store.clone();
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            store.database.look(|tables, _| {
                if tables.locks.touch(open.tx) && !open.aborted {
                    writes::commit(tables, open.writes);
                }
                tables.locks.end(open.tx);
            });
            store.database.announce();
        });
    }

    fn apply_open(&mut self, operation: Operation) -> StoreResult<()> {
        let Some(open) = self.open.take() else {
            return Ok(());
        };
        let there = self.store.database.look(|tables, _| {
            let there = tables.locks.touch(open.tx);
            if there {
                writes::commit(tables, open.writes);
            }
            tables.locks.end(open.tx);
            there
        });
        self.store.database.announce();
        if there { Ok(()) } else { Err(lost(operation)) }
    }

    async fn roll_back(&mut self) -> StoreResult<()> {
        let operation = Operation::Rollback;
        self.check(self.store.client.before(operation).await, operation)
            .await?;
        self.abandon();
        self.check(self.store.client.after(operation).await, operation)
            .await
    }

    /// Rolls back at once.
    fn abandon(&mut self) {
        if let Some(open) = self.open.take() {
            let tx = open.tx;
            self.store
                .database
                .look(|tables, _| writes::roll_back(tables, open.writes));
            self.store.database.abandon(tx);
        }
    }

    fn abort(&mut self) {
        if let Some(open) = &mut self.open {
            open.aborted = true;
        }
    }

    /// The connection is gone; the server rolls back when it notices.
    fn break_off(&mut self, lingers: Duration) {
        self.broken = true;
        if lingers.is_zero() {
            self.abandon();
            return;
        }
        let Some(open) = self.open.take() else { return };
        let store = self.store.clone();
        tokio::spawn(async move {
            tokio::time::sleep(lingers).await;
            store.database.abandon(open.tx);
        });
    }
}

fn read(tables: &Tables, open: &Open, table: &str, key: &str) -> Option<Value> {
    let own = open.writes.iter().rev().find_map(|write| match write {
        Write::Put {
            table: in_table,
            key: at,
            value,
        } if in_table == table && at == key => Some(value.clone()),
        _ => None,
    });
    own.unwrap_or_else(|| {
        let place = (table.to_owned(), key.to_owned());
        tables.values.get(&place).cloned()
    })
}

fn unknown(mut error: StoreError) -> StoreError {
    // Whatever was lost here was lost after COMMIT had been sent.
    if error.kind == StoreErrorKind::Unavailable {
        error.kind = StoreErrorKind::CommitUnknown;
    }
    error
}

pub(super) fn aborted() -> StoreError {
    StoreError::message(
        StoreErrorKind::Aborted,
        "the transaction has failed before; only a rollback can follow",
    )
}

fn no_transaction() -> StoreError {
    StoreError::message(StoreErrorKind::Other, "no transaction is open")
}
