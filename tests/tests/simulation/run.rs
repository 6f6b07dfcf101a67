//! One seed from beginning to end.

use std::{fmt, time::Duration};

use tokio::{
    task::{JoinSet, LocalSet},
    time::{Instant, sleep},
};
use whizbang::{
    store::{DeadLetter, Store},
    testing::Flaw,
};

use super::{
    check::{self, Faults, Watch},
    client,
    handlers::{EFFECTS, PAYMENTS},
    instance,
    plan::{CALM, STORM},
    world::World,
};

/// What was simulated.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    pub(crate) effects: usize,
    pub(crate) payments: usize,
    pub(crate) relayed: usize,
    /// The longest time that anything took once the faults had stopped.
    pub(crate) slowest: Duration,
}

impl Summary {
    pub(crate) fn add(&mut self, other: &Self) {
        self.effects += other.effects;
        self.payments += other.payments;
        self.relayed += other.relayed;
        self.slowest = self.slowest.max(other.slowest);
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} effects, {} payments, {} messages relayed; done at most {:.1} s after the faults",
            self.effects,
            self.payments,
            self.relayed,
            self.slowest.as_secs_f32()
        )
    }
}

/// A seed that broke a promise.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) seed: u64,
    faults: Faults,
    state: String,
}

impl Failure {
    /// The first thing that is wrong.
    pub(crate) fn what(&self) -> &str {
        self.faults.first().map_or("nothing", String::as_str)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "seed {} broke a promise:\n  {}\n\n{}",
            self.seed,
            self.faults.join("\n  "),
            self.state
        )
    }
}

/// Runs one seed, on a store with a mistake if one is given.
pub(crate) fn simulate(seed: u64, flaw: Option<Flaw>) -> Result<Summary, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    // The callers use closures whose futures the compiler cannot show to be `Send`.
    let local = LocalSet::new();
    let result = local.block_on(&runtime, async {
        let world = World::new(seed);
        world.store.break_promise(flaw);
        match play(&world).await {
            Ok(summary) => Ok(summary),
            Err(faults) => Err(Failure {
                seed,
                faults,
                state: format!("{:#?}\n{}", world.plan, world.store.describe()),
            }),
        }
    });
    // Processes that have crashed wait for ever; they end here.
    runtime.shutdown_background();
    result
}

async fn play(world: &World) -> Result<Summary, Faults> {
    let mut processes = JoinSet::new();
    for place in 0..world.plan.instances {
        processes.spawn_local(instance::run(world.clone(), place));
    }
    processes.spawn_local(client::operate(world.clone()));
    let mut callers = JoinSet::new();
    for part in 0..world.plan.broker_messages {
        callers.spawn_local(client::feed_broker(world.clone(), part));
    }
    for part in 0..world.plan.transactions {
        callers.spawn_local(client::transact(world.clone(), part));
    }
    for part in 0..world.plan.commands {
        callers.spawn_local(client::command(world.clone(), part));
    }
    callers.spawn_local(client::shake_database(world.clone()));

    let mut watch = Watch::default();
    let began = Instant::now();
    while began.elapsed() < STORM {
        sleep(Duration::from_secs(1)).await;
        none(watch.look(world))?;
        none(ended_badly(&mut processes))?;
        none(ended_badly(&mut callers))?;
    }
    world.calm_down();
    let slowest = settle(world, &mut watch, &mut processes, &mut callers).await?;
    let letters = letters(world).await;
    none(check::everything(world, &letters))?;
    let written = world.store.effects();
    Ok(Summary {
        effects: written.list(EFFECTS).len(),
        payments: written.list(PAYMENTS).len(),
        relayed: world.broker.sent().len(),
        slowest,
    })
}

/// Waits until everything is done, and says how long it took.
async fn settle(
    world: &World,
    watch: &mut Watch,
    processes: &mut JoinSet<()>,
    callers: &mut JoinSet<()>,
) -> Result<Duration, Faults> {
    let began = Instant::now();
    loop {
        sleep(Duration::from_millis(100)).await;
        none(watch.look(world))?;
        none(ended_badly(processes))?;
        none(ended_badly(callers))?;
        // What died before the faults stopped may die no more.
        client::requeue(world)
            .await
            .map_err(|error| vec![format!("the observer: {error}")])?;
        let load = world.store.load();
        let done = callers.is_empty()
            && world.broker.load() == 0
            && load.inbox + load.outbox + load.gates == 0
            && world.store.is_at_rest();
        if done {
            return Ok(began.elapsed());
        }
        if began.elapsed() > CALM {
            return Err(vec![format!(
                "{} s after the faults there is still something to do: {load:?}, {} at the broker, {} callers",
                CALM.as_secs(),
                world.broker.load(),
                callers.len()
            )]);
        }
    }
}

async fn letters(world: &World) -> Vec<DeadLetter> {
    world
        .store
        .dead_letters(0, 10_000)
        .await
        .expect("the observer has no faults")
}

/// Tasks that panicked.
fn ended_badly(tasks: &mut JoinSet<()>) -> Faults {
    let mut faults = Faults::new();
    while let Some(ended) = tasks.try_join_next() {
        if let Err(error) = ended {
            faults.push(format!("a part of the simulation failed: {error}"));
        }
    }
    faults
}

fn none(faults: Faults) -> Result<(), Faults> {
    if faults.is_empty() {
        Ok(())
    } else {
        Err(faults)
    }
}
