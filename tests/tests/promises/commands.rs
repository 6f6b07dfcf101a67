//! P7: one execution for each key, on every path.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;
use whizbang::{BoxError, Command, ExecuteError, idempotent_command};
use whizbang_postgres::HandlerContext;
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

#[derive(Debug, Serialize, Deserialize, Command)]
#[message(name = "tests.measure", reply = f64)]
struct Measure {
    id: Uuid,
    value: Option<f64>,
    ends_and_asks: Option<Uuid>,
}

#[idempotent_command(key = id)]
async fn measure(command: Measure, cx: &mut HandlerContext<'_>) -> Result<f64, BoxError> {
    sqlx::query("INSERT INTO payments (cents) VALUES (1)")
        .execute(cx.conn())
        .await?;
    if let Some(id) = command.ends_and_asks {
        sqlx::raw_sql("COMMIT; BEGIN").execute(cx.conn()).await?;
        let inner = Measure {
            id,
            value: Some(1.0),
            ends_and_asks: None,
        };
        cx.execute(inner).await?;
    }
    Ok(command.value.unwrap_or(f64::NAN))
}

#[tokio::test]
async fn a_reply_that_cannot_be_read_back_is_not_committed() {
    let world = World::new().await;
    let app = world.service().register::<measure>().start().await;
    let app = app.expect("start");
    let command = Measure {
        id: Uuid::now_v7(),
        value: None,
        ends_and_asks: None,
    };
    let answer = app.dispatcher().execute(command).await;
    assert!(
        matches!(answer, Err(ExecuteError::Handler(_))),
        "{answer:?}"
    );
    assert_eq!(payments(&world).await, 0);
    let keys = "SELECT count(*) FROM wh_command_results";
    assert_eq!(world.count(keys).await, 0, "the key is free");
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn an_inner_command_does_not_speak_for_an_outer_one_that_ended_its_transaction() {
    let world = World::new().await;
    let app = world.service().register::<measure>().start().await;
    let app = app.expect("start");
    let command = Measure {
        id: Uuid::now_v7(),
        value: Some(1.0),
        ends_and_asks: Some(Uuid::now_v7()),
    };
    let answer = app.dispatcher().execute(command).await;
    assert!(matches!(answer, Err(ExecuteError::Unfenced)), "{answer:?}");
    assert_eq!(payments(&world).await, 1, "the inner one is rolled back");
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn an_inner_command_leaves_the_outer_one_its_beginning() {
    let world = World::new().await;
    let app = world.service().register::<asks>().start().await;
    let app = app.expect("start");
    let id = Uuid::now_v7();
    for _ in 0..2 {
        let answer = app.dispatcher().execute(Ask { id, depth: 2 }).await;
        assert_eq!(answer.expect("executed"), 3, "commands in all");
    }
    assert_eq!(payments(&world).await, 3);
    app.shutdown().await.expect("shutdown");
}

#[derive(Debug, Serialize, Deserialize, Command)]
#[message(name = "tests.ask", reply = u32)]
struct Ask {
    id: Uuid,
    depth: u32,
}

/// Asks itself, with another key each time.
#[idempotent_command(key = (id, depth))]
async fn asks(command: Ask, cx: &mut HandlerContext<'_>) -> Result<u32, BoxError> {
    sqlx::query("INSERT INTO payments (cents) VALUES (1)")
        .execute(cx.conn())
        .await?;
    let Some(depth) = command.depth.checked_sub(1) else {
        return Ok(1);
    };
    let inner = Box::pin(async { cx.execute(Ask { depth, ..command }).await });
    Ok(1 + inner.await?)
}
