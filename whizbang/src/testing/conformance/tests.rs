//! The checks on the store in memory, and on stores with a mistake.

use std::time::Duration;

use super::{InMemory, checks};
use crate::testing::Flaw;

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
