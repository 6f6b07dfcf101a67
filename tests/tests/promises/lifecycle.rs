//! P8 and P10: nothing is lost by stopping, killing and deploying, and time is the database's.

use std::time::Duration;

use whizbang::{StartError, StoreErrorKind};
use whizbang_postgres::PgStore;
use whizbang_tests::{
    Pay, Ping, Step, Stepped, World, note_stepped, note_twice, pay, scripted, wait_until,
};

#[tokio::test]
async fn shutdown_finishes_what_runs_and_gives_back_what_has_not_begun() {
    let world = World::new().await;
    world.script.steps(0, [Step::Wait]);
    let app = std::sync::Arc::new(
        world
            .service()
            .register::<scripted>()
            .concurrency(1)
            .start()
            .await
            .expect("start"),
    );
    for number in 0..20 {
        world.feed(&Ping { number });
    }
    world.script.entered().await;
    let stopping = {
        let app = std::sync::Arc::clone(&app);
        tokio::spawn(async move { app.shutdown().await })
    };
    wait_until("no longer accepting", || async { !app.health().accepting }).await;
    world.script.go();
    stopping.await.expect("no panic").expect("shutdown");
    app.shutdown().await.expect("a second shutdown");
    assert_eq!(
        world.effects("scripted", 0).await,
        1,
        "the running one finished"
    );
    let leased = world
        .count("SELECT count(*) FROM wh_inbox WHERE lease_token IS NOT NULL")
        .await;
    assert_eq!(leased, 0, "nothing is leased any more");
    assert_eq!(
        world
            .count("SELECT count(*) FROM wh_service_instances")
            .await,
        0
    );
    let next = world
        .service()
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    world.quiet().await;
    assert_eq!(world.count("SELECT count(*) FROM effects").await, 20);
    let attempts = world.count("SELECT count(*) FROM wh_dead_letters").await;
    assert_eq!(attempts, 0);
    next.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn a_handler_past_the_deadline_is_rolled_back_and_comes_again() {
    let world = World::new().await;
    world.script.steps(0, [Step::Hang]);
    let app = world
        .service()
        .register::<scripted>()
        .configure(|config| config.shutdown_deadline = Duration::from_millis(100))
        .start()
        .await
        .expect("start");
    world.feed(&Ping { number: 0 });
    wait_until("it hangs", || async { world.script.calls(0) == 1 }).await;
    assert!(app.shutdown().await.is_err());
    assert_eq!(world.effects("scripted", 0).await, 0);
    let next = world
        .service()
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    world.quiet().await;
    assert_eq!(world.effects("scripted", 0).await, 1);
    next.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn an_instance_that_vanished_is_replaced_within_its_lease() {
    let world = World::new().await;
    world.script.steps(0, [Step::Hang]);
    let lost = world
        .service()
        .register::<scripted>()
        .configure(|config| config.lease = Duration::from_millis(500))
        .start()
        .await
        .expect("start");
    world.feed(&Ping { number: 0 });
    wait_until("it hangs", || async { world.script.calls(0) == 1 }).await;
    drop(lost);
    let next = world
        .service()
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    world.quiet().await;
    assert_eq!(world.effects("scripted", 0).await, 1);
    next.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn old_and_new_versions_share_the_work_and_drop_nothing() {
    let world = World::new().await;
    let new = world
        .service()
        .register::<scripted>()
        .register::<note_twice>()
        .start()
        .await
        .expect("start");
    new.shutdown().await.expect("shutdown");
    // Only the old version runs, and stores for the new one's handler as well.
    let old = world
        .service()
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    world.feed(&Ping { number: 1 });
    wait_until("the old handler ran", || async {
        world.effects("scripted", 1).await == 1
    })
    .await;
    assert_eq!(
        world.count("SELECT count(*) FROM wh_inbox").await,
        1,
        "the new one's row waits"
    );
    let new = world
        .service()
        .register::<scripted>()
        .register::<note_twice>()
        .start()
        .await
        .expect("start");
    world.quiet().await;
    assert_eq!(world.effects("note_twice", 1).await, 1);
    old.shutdown().await.expect("shutdown");
    new.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn a_command_nobody_handles_is_a_dead_letter_and_an_event_is_not() {
    let world = World::new().await;
    let app = world
        .service()
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    world.feed(&Pay {
        payment_id: uuid::Uuid::now_v7(),
        cents: 1,
    });
    world.feed(&Stepped {
        stream: "s".into(),
        number: 1,
    });
    world.dead_letters(1).await;
    world.quiet().await;
    let counts = app.counts();
    assert_eq!((counts.unhandled, counts.dropped), (1, 1));
    let letters = app.dead_letters(0, 10).await.expect("list");
    assert_eq!(letters[0].reason, "unhandled");
    app.shutdown().await.expect("shutdown");
    // Once somebody handles it, the dead letter can be requeued.
    let next = world
        .service()
        .register::<pay>()
        .start()
        .await
        .expect("start");
    next.requeue(&[letters[0].id]).await.expect("requeue");
    wait_until("it was paid", || async {
        world.count("SELECT count(*) FROM payments").await == 1
    })
    .await;
    next.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn one_schema_belongs_to_one_service() {
    let world = World::new().await;
    let app = world
        .service()
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    app.shutdown().await.expect("shutdown");
    let other = world
        .service()
        .service("others")
        .register::<scripted>()
        .start()
        .await;
    let Err(StartError::Store(error)) = other else {
        panic!("a second service must not share the schema")
    };
    assert_eq!(error.kind, StoreErrorKind::Setup);
    assert!(
        error.to_string().contains("belongs to service `tests`"),
        "{error}"
    );
    let store = PgStore::new(world.pool.clone());
    assert!(
        store
            .rename_service("tests", "others")
            .await
            .expect("rename")
    );
    let renamed = world
        .service()
        .service("others")
        .register::<scripted>()
        .start()
        .await;
    renamed
        .expect("the schema is its own now")
        .shutdown()
        .await
        .expect("shutdown");
}

#[tokio::test]
async fn an_unmigrated_schema_says_what_to_do() {
    let world = World::new().await;
    let store = PgStore::new(world.pool.clone()).schema("nothing here");
    let refused = world.service_on(store).register::<scripted>().start().await;
    let Err(StartError::Store(error)) = refused else {
        panic!("there is nothing to start on")
    };
    assert!(
        error.to_string().contains("whizbang_postgres::migrate"),
        "{error}"
    );
}

#[tokio::test]
async fn awkward_schemas_live_side_by_side_and_migrate_once() {
    let world = World::new().await;
    let name = "Ünser \"Schema\" 1";
    let mut tasks = Vec::new();
    for _ in 0..10 {
        let pool = world.pool.clone();
        tasks.push(tokio::spawn(async move {
            whizbang_postgres::migrate_schema(&pool, name).await
        }));
    }
    for task in tasks {
        task.await.expect("no panic").expect("migrate");
    }
    let store = PgStore::new(world.pool.clone()).schema(name);
    let app = world
        .service_on(store)
        .register::<note_stepped>()
        .start()
        .await
        .expect("start");
    world.feed(&Stepped {
        stream: "s".into(),
        number: 1,
    });
    wait_until("it ran", || async {
        world.effects("note_stepped", 1).await == 1
    })
    .await;
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn a_pool_of_one_connection_works_slowly() {
    let world = World::new().await;
    let pool = world.pool_of(1).await;
    let app = world
        .service_on(PgStore::new(pool))
        .register::<scripted>()
        .register::<note_twice>()
        .start()
        .await
        .expect("start");
    assert_eq!(app.concurrency(), 1);
    for number in 0..20 {
        world.feed(&Ping { number });
    }
    world.quiet().await;
    assert_eq!(world.count("SELECT count(*) FROM effects").await, 40);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn a_database_that_defaults_to_serializable_changes_nothing() {
    let world = World::new().await;
    for default in ["serializable", "repeatable read"] {
        let setting = [("default_transaction_isolation", default)];
        let options = world.database().connect_options().options(setting);
        let pool = sqlx::postgres::PgPoolOptions::new()
            .max_connections(8)
            .connect_with(options)
            .await
            .expect("connect");
        let app = world
            .service_on(PgStore::new(pool))
            .register::<note_stepped>()
            .start()
            .await
            .expect("start");
        let before = world.count("SELECT count(*) FROM effects").await;
        for number in 0..50 {
            world.feed(&Stepped {
                stream: format!("{}", number % 4),
                number,
            });
        }
        wait_until("all ran", || async {
            world.count("SELECT count(*) FROM effects").await == before + 50
        })
        .await;
        world.quiet().await;
        app.shutdown().await.expect("shutdown");
    }
    assert_eq!(world.count("SELECT count(*) FROM wh_dead_letters").await, 0);
}
