//! The checks on the store in memory, and on stores with a mistake.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::{Harness, checks};
use crate::{
    BoxError,
    testing::{Flaw, MemoryConnection, MemoryStore},
};

struct InMemory {
    flaw: Option<Flaw>,
}

impl Harness for InMemory {
    type Store = MemoryStore;

    async fn fresh(&self) -> MemoryStore {
        let store = MemoryStore::new();
        store.break_promise(self.flaw);
        store
    }

    async fn now(&self, store: &MemoryStore) -> DateTime<Utc> {
        store.now()
    }

    async fn pass(&self, store: &MemoryStore, time: Duration) {
        store.advance(time);
    }

    async fn write(&self, connection: &mut MemoryConnection, row: &str) -> Result<(), BoxError> {
        Ok(connection.append("written", row.into()).await?)
    }

    async fn written(&self, store: &MemoryStore) -> Vec<String> {
        let effects = store.effects();
        let rows = effects.list("written").iter();
        rows.filter_map(|row| row.as_str().map(str::to_owned))
            .collect()
    }

    async fn spoil(&self, connection: &mut MemoryConnection) {
        assert!(connection.fail().await.is_err());
    }

    async fn stray_commit(&self, connection: &mut MemoryConnection) {
        connection.stray_commit().await.expect("the commit works");
    }
}

async fn violations(flaw: Option<Flaw>) -> Vec<String> {
    let harness = InMemory { flaw };
    let mut found = Vec::new();
    for check in checks::<InMemory>() {
        let run = tokio::time::timeout(Duration::from_secs(3600), check.run(&harness));
        match run.await {
            Ok(Ok(())) => {}
            Ok(Err(violation)) => found.push(format!("{check:?}: {violation}")),
            Err(_elapsed) => found.push(format!("{check:?}: it never ended")),
        }
    }
    found
}

#[tokio::test(start_paused = true)]
async fn the_store_in_memory_keeps_the_contract() {
    let found = violations(None).await;
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn every_mistake_is_noticed() {
    let flaws = [
        Flaw::CompletesUnderAnyToken,
        Flaw::CompletesMissingRows,
        Flaw::ForgetsMessageIds,
        Flaw::LosesOutboxRows,
        Flaw::KeepsRolledBackEffects,
        Flaw::KeepsCompletedRows,
        Flaw::IgnoresGates,
        Flaw::RetriesAtTheEnd,
        Flaw::NeverTakesOver,
        Flaw::ForgetsCommandKeys,
        Flaw::DeliversTwice,
    ];
    for flaw in flaws {
        assert!(!violations(Some(flaw)).await.is_empty(), "{flaw:?} passes");
    }
}
