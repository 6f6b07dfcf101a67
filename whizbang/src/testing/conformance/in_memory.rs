//! The checks' hold on the store in memory.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::Harness;
use crate::{
    BoxError,
    testing::{Flaw, MemoryConnection, MemoryStore},
};

/// Runs the checks on [`MemoryStore`], or on one with a mistake.
#[derive(Debug, Clone, Copy, Default)]
pub struct InMemory {
    /// The mistake.
    pub flaw: Option<Flaw>,
}

impl Harness for InMemory {
    type Store = MemoryStore;

    async fn fresh(&self) -> Result<MemoryStore, BoxError> {
        let store = MemoryStore::new();
        store.break_promise(self.flaw);
        Ok(store)
    }

    async fn now(&self, store: &MemoryStore) -> Result<DateTime<Utc>, BoxError> {
        Ok(store.now())
    }

    async fn pass(&self, store: &MemoryStore, time: Duration) -> Result<(), BoxError> {
        store.advance(time);
        Ok(())
    }

    async fn write(&self, connection: &mut MemoryConnection, row: &str) -> Result<(), BoxError> {
        Ok(connection.append("written", row.into()).await?)
    }

    async fn written(&self, store: &MemoryStore) -> Result<Vec<String>, BoxError> {
        let effects = store.effects();
        let rows = effects.list("written").iter();
        Ok(rows
            .filter_map(|row| row.as_str().map(str::to_owned))
            .collect())
    }

    async fn write_once(
        &self,
        connection: &mut MemoryConnection,
        row: &str,
    ) -> Result<(), BoxError> {
        Ok(connection.insert("once", row, row.into()).await?)
    }

    async fn spoil(&self, connection: &mut MemoryConnection) -> Result<(), BoxError> {
        Ok(connection.fail().await?)
    }

    async fn stray_commit(&self, connection: &mut MemoryConnection) -> Result<(), BoxError> {
        Ok(connection.stray_commit().await?)
    }
}
