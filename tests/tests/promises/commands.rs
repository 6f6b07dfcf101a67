//! P7: one execution for each key, on every path.

use std::time::Duration;

use uuid::Uuid;
use whizbang::ExecuteError;
use whizbang_tests::{Pay, Step, World, pay, wait_until};

async fn payments(world: &World) -> i64 {
    world.count("SELECT count(*) FROM payments").await
}

#[tokio::test]
async fn repeats_get_the_first_receipt_on_every_path() {
    let world = World::new().await;
    let app = world
        .service()
        .register::<pay>()
        .start()
        .await
        .expect("start");
    let dispatcher = app.dispatcher();
    let command = Pay {
        payment_id: Uuid::now_v7(),
        cents: 500,
    };
    let first = dispatcher.execute(command.clone()).await.expect("execute");
    let again = dispatcher
        .execute(command.clone())
        .await
        .expect("execute again");
    assert_eq!(first, again);
    let mut tx = world.pool.begin().await.expect("begin");
    dispatcher.send(&mut tx, &command).await.expect("send");
    tx.commit().await.expect("commit");
    world.feed(&command);
    wait_until("both arrived", || async { app.counts().completed == 2 }).await;
    world.quiet().await;
    assert_eq!(payments(&world).await, 1);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn a_key_used_for_another_payload_is_refused_and_never_dropped() {
    let world = World::new().await;
    let app = world
        .service()
        .register::<pay>()
        .start()
        .await
        .expect("start");
    let dispatcher = app.dispatcher();
    let id = Uuid::now_v7();
    dispatcher
        .execute(Pay {
            payment_id: id,
            cents: 1,
        })
        .await
        .expect("execute");
    let reused = dispatcher
        .execute(Pay {
            payment_id: id,
            cents: 2,
        })
        .await;
    assert!(
        matches!(reused, Err(ExecuteError::KeyReused { .. })),
        "{reused:?}"
    );
    world.feed(&Pay {
        payment_id: id,
        cents: 3,
    });
    world.dead_letters(1).await;
    assert_eq!(
        world
            .count("SELECT count(*) FROM wh_dead_letters WHERE reason = 'key_reused'")
            .await,
        1
    );
    assert_eq!(payments(&world).await, 1);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn a_failed_execution_frees_the_key() {
    let world = World::new().await;
    world
        .script
        .steps(7, [Step::Fail, Step::Panic, Step::Commit]);
    let app = world
        .service()
        .register::<pay>()
        .start()
        .await
        .expect("start");
    let dispatcher = app.dispatcher();
    let command = Pay {
        payment_id: Uuid::now_v7(),
        cents: 7,
    };
    let failed = dispatcher.execute(command.clone()).await;
    assert!(
        matches!(failed, Err(ExecuteError::Handler(_))),
        "{failed:?}"
    );
    let panicked = dispatcher.execute(command.clone()).await;
    assert!(
        matches!(panicked, Err(ExecuteError::Panicked(_))),
        "{panicked:?}"
    );
    assert_eq!(payments(&world).await, 0);
    assert_eq!(
        world.count("SELECT count(*) FROM wh_command_results").await,
        0
    );
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn a_crowd_with_one_key_waits_without_eating_the_pool() {
    let world = World::new().await;
    world.script.steps(9, [Step::Wait]);
    let pool = world.pool_of(3).await;
    let app = world
        .service_on(whizbang_postgres::PgStore::new(pool))
        .register::<pay>()
        .start()
        .await
        .expect("start");
    let command = Pay {
        payment_id: Uuid::now_v7(),
        cents: 9,
    };
    let mut crowd = Vec::new();
    for _ in 0..50 {
        let (dispatcher, command) = (app.dispatcher(), command.clone());
        crowd.push(tokio::spawn(
            async move { dispatcher.execute(command).await },
        ));
    }
    world.script.entered().await;
    // Another key gets through while fifty calls wait for the first one.
    let other = Pay {
        payment_id: Uuid::now_v7(),
        cents: 10,
    };
    app.dispatcher()
        .execute(other)
        .await
        .expect("the pool is not eaten");
    world.script.go();
    let mut rows = Vec::new();
    for task in crowd {
        rows.push(task.await.expect("no panic").expect("execute").row);
    }
    rows.dedup();
    assert_eq!(rows.len(), 1, "one receipt for all");
    assert_eq!(payments(&world).await, 2);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn a_repeat_that_cannot_wait_longer_says_that_it_is_safe_to_try_again() {
    let world = World::new().await;
    world.script.steps(9, [Step::Wait]);
    let one = world
        .service()
        .register::<pay>()
        .start()
        .await
        .expect("start");
    let two = world
        .service()
        .register::<pay>()
        .start()
        .await
        .expect("start");
    let command = Pay {
        payment_id: Uuid::now_v7(),
        cents: 9,
    };
    let running = {
        let (dispatcher, command) = (one.dispatcher(), command.clone());
        tokio::spawn(async move { dispatcher.execute(command).await })
    };
    world.script.entered().await;
    for dispatcher in [one.dispatcher(), two.dispatcher()] {
        let busy = dispatcher
            .execute(command.clone())
            .wait(Duration::from_millis(50))
            .await;
        assert!(
            matches!(busy, Err(ExecuteError::InProgress { .. })),
            "{busy:?}"
        );
    }
    world.script.go();
    let receipt = running.await.expect("no panic").expect("execute");
    let repeat = two.dispatcher().execute(command).await.expect("execute");
    assert_eq!(receipt, repeat);
    one.shutdown().await.expect("shutdown");
    two.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn a_dropped_execution_leaves_no_key_and_no_connection_behind() {
    let world = World::new().await;
    world.script.steps(9, [Step::Hang]);
    let app = world
        .service()
        .register::<pay>()
        .start()
        .await
        .expect("start");
    let command = Pay {
        payment_id: Uuid::now_v7(),
        cents: 9,
    };
    let dispatcher = app.dispatcher();
    let dropped = tokio::time::timeout(
        Duration::from_millis(300),
        dispatcher.execute(command.clone()).into_future(),
    )
    .await;
    assert!(dropped.is_err());
    dispatcher.execute(command).await.expect("the key is free");
    assert_eq!(payments(&world).await, 1);
    app.shutdown().await.expect("shutdown");
}
