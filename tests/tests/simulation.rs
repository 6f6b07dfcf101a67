//! The whole runtime, several instances of it, on the store in memory under paused time, with
//! faults at every call of the store and the transport.
//!
//! A seed decides everything: what is sent, what fails, who dies when. After each seed every
//! message must have had its effect once, in order, and nothing may be left behind.

mod simulation {
    pub(crate) mod broker;
    pub(crate) mod chance;
    pub(crate) mod check;
    pub(crate) mod client;
    pub(crate) mod faults;
    pub(crate) mod handlers;
    pub(crate) mod instance;
    pub(crate) mod messages;
    pub(crate) mod plan;
    pub(crate) mod run;
    pub(crate) mod world;
}

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use simulation::run::{Failure, Summary, simulate};
use whizbang::testing::Flaw;

/// Seeds when nothing is said.
const DEFAULT_SEEDS: u64 = 300;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is no number: {text}")),
    )
}

/// The seeds to run: one, or so many from the first.
fn seeds() -> std::ops::Range<u64> {
    if let Some(seed) = number("WHIZBANG_SEED") {
        return seed..seed + 1;
    }
    let first = number("WHIZBANG_FIRST_SEED").unwrap_or(0);
    first..first + number("WHIZBANG_SEEDS").unwrap_or(DEFAULT_SEEDS)
}

/// Runs seeds on all processors until one fails.
fn run_seeds(seeds: std::ops::Range<u64>, flaw: Option<Flaw>) -> (Summary, Option<Failure>) {
    let next = AtomicU64::new(seeds.start);
    let total = Mutex::new(Summary::default());
    let failure: Mutex<Option<Failure>> = Mutex::new(None);
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let failed = failure
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .is_some();
            if seed >= seeds.end || failed {
                return;
            }
            match simulate(seed, flaw) {
                Ok(summary) => {
                    total
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .add(&summary);
                }
                Err(found) => {
                    let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
                    failure.get_or_insert(found);
                }
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, |count| count.get().min(8));
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let failure = failure.into_inner().unwrap_or_else(PoisonError::into_inner);
    let total = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    (total, failure)
}

#[test]
fn every_seed_keeps_every_promise() {
    simulation::handlers::silence_expected_panics();
    let seeds = seeds();
    let count = seeds.end - seeds.start;
    let began = std::time::Instant::now();
    let (total, failure) = run_seeds(seeds, None);
    if let Some(failure) = failure {
        panic!(
            "{failure}\n\nto repeat: cargo xtask simulate --seed {}",
            failure.seed
        );
    }
    println!(
        "{count} seeds in {:.1} s: {total}",
        began.elapsed().as_secs_f32()
    );
}

/// Mistakes that the effects of a run show. The others are noticed by the conformance checks.
const VISIBLE: &[Flaw] = &[
    Flaw::CompletesMissingRows,
    Flaw::ForgetsMessageIds,
    Flaw::LosesOutboxRows,
    Flaw::KeepsRolledBackEffects,
    Flaw::KeepsCompletedRows,
    Flaw::IgnoresGates,
    Flaw::RetriesAtTheEnd,
    Flaw::NeverTakesOver,
    Flaw::ForgetsCommandKeys,
];

#[test]
fn broken_promises_are_noticed() {
    simulation::handlers::silence_expected_panics();
    for flaw in VISIBLE {
        let (_, failure) = run_seeds(0..100, Some(*flaw));
        let failure = failure.unwrap_or_else(|| panic!("100 seeds did not notice {flaw:?}"));
        println!("{flaw:?}: seed {}: {}", failure.seed, failure.what());
    }
}
