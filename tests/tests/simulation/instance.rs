//! Processes of the service that start, die, stop in good order, and start again.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use whizbang::{App, Builder, testing::MemoryStore};

use super::{chance::Dice, faults::Storm, handlers, world::World};

/// How long a process that was asked to stop may take; the shutdown deadline and some calls.
const STOPPING: Duration = Duration::from_secs(60);

/// How a process's life goes.
enum Life {
    /// Until the faults stop and ever after.
    Long,
    /// It is asked to stop after this time.
    Short(Duration),
}

/// Runs one process after another in the same place until the simulation ends.
pub(crate) async fn run(world: World, place: u64) {
    if place != 0 {
        world.complete().await;
    }
    let dice = Dice::new(world.seed, 500 + place);
    let mut process = place * 10_000;
    loop {
        process += 1;
        let store = handle(&world, process);
        let life = if dice.happens(0.3) && !world.is_calm() {
            Life::Short(dice.millis(200, 8000))
        } else {
            Life::Long
        };
        live(&world, place, &store, life).await;
        world.serve(place, None);
        let longest = if world.is_calm() { 200 } else { 4000 };
        sleep(dice.millis(10, longest)).await;
    }
}

fn handle(world: &World, process: u64) -> MemoryStore {
    let store = world.store.client(Storm::new(world, process));
    match world.plan.connections {
        Some(limit) => store.limited_to(limit),
        None => store,
    }
}

async fn live(world: &World, place: u64, store: &MemoryStore, life: Life) {
    let Some(app) = start(world, place, store).await else {
        return;
    };
    world.serve(place, Some(app.dispatcher()));
    let over = async {
        match life {
            Life::Long => std::future::pending().await,
            Life::Short(time) => sleep(time).await,
        }
    };
    tokio::select! {
        biased;
        () = died(store) => {}
        () = over => {
            world.serve(place, None);
            tokio::select! {
                biased;
                () = died(store) => {}
                stopped = timeout(STOPPING, app.shutdown()) => {
                    assert!(stopped.is_ok(), "a process did not stop");
                }
            }
        }
    }
}

async fn died(store: &MemoryStore) {
    while !store.is_crashed() {
        sleep(Duration::from_millis(100)).await;
    }
}

/// Starts a process, however often it takes; `None` if it dies over it.
async fn start(world: &World, place: u64, store: &MemoryStore) -> Option<App<MemoryStore>> {
    loop {
        let started = tokio::select! {
            biased;
            () = died(store) => return None,
            started = builder(world, place, store).start() => started,
        };
        match started {
            Ok(app) => return Some(app),
            Err(whizbang::StartError::Faults(faults)) => panic!("{faults:?}"),
            Err(_) => sleep(Duration::from_millis(200)).await,
        }
    }
}

fn builder(world: &World, place: u64, store: &MemoryStore) -> Builder<MemoryStore> {
    let builder = Builder::new(store.clone())
        .service("sim")
        .without_discovery()
        .state(world.clone())
        .config(world.plan.config.clone())
        .transport(world.broker.port(store.clone()))
        .register::<handlers::step>()
        .register::<handlers::step_outside>()
        .register::<handlers::follow>()
        .register::<handlers::loose>()
        .register::<handlers::move_money>()
        .register::<handlers::pay>();
    // The first place runs the newest version; the others lack a handler here and there, so that
    // streams meet heads that an instance cannot run.
    let mut builder = builder;
    if place == 0 || place % 2 == 1 {
        builder = builder.register::<handlers::open>();
    }
    if place == 0 || place % 3 == 2 {
        builder = builder.register::<handlers::close>();
    }
    if place != 1 {
        builder = builder.register::<handlers::loose_lazy>();
    }
    builder
}
