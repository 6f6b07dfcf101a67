//! P2 and P3: effects, outgoing messages and completion are one commit, and it is fenced.

use whizbang::{BoxError, handler};
use whizbang_postgres::HandlerContext;
use whizbang_tests::{Ping, Step, World, note_plain, note_twice, scripted, wait_until};

async fn after(steps: &[Step]) -> (World, whizbang_postgres::App) {
    let world = World::new().await;
    world.script.steps(1, steps.iter().copied());
    let app = world
        .service()
        .register::<scripted>()
        .register::<note_twice>()
        .register::<note_plain>()
        .start()
        .await
        .expect("start");
    world.feed(&Ping { number: 1 });
    (world, app)
}

#[tokio::test]
async fn a_failed_call_leaves_nothing_and_the_next_one_counts_once() {
    for step in [Step::Fail, Step::Panic, Step::Swallow] {
        let (world, app) = after(&[step, step]).await;
        world.quiet().await;
        assert_eq!(world.script.calls(1), 3, "{step:?}");
        assert_eq!(world.effects("scripted", 1).await, 1, "{step:?}");
        wait_until("the event was handled once", || async {
            world.script.calls(1_000_001) == 1
        })
        .await;
        assert_eq!(
            world.effects("note_twice", 1).await,
            1,
            "its neighbour ran alone"
        );
        app.shutdown().await.expect("shutdown");
    }
}

#[tokio::test]
async fn a_handler_that_ends_its_own_transaction_is_not_completed_and_not_repeated() {
    let (world, app) = after(&[Step::Commit]).await;
    world.dead_letters(1).await;
    let error: String = sqlx::query_scalar("SELECT error FROM wh_dead_letters")
        .fetch_one(&world.pool)
        .await
        .expect("the letter");
    assert!(error.contains("ended its own transaction"), "{error}");
    world.quiet().await;
    assert_eq!(world.script.calls(1), 1);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn a_statement_past_the_timeout_frees_its_slot_at_once() {
    let world = World::new().await;
    world.script.steps(1, [Step::SlowStatement]);
    let app = world
        .service()
        .register::<scripted>()
        .configure(|config| config.handler_timeout = std::time::Duration::from_millis(200))
        .start()
        .await
        .expect("start");
    world.feed(&Ping { number: 1 });
    world.quiet().await;
    assert_eq!(world.script.calls(1), 2);
    assert_eq!(world.effects("scripted", 1).await, 1);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn a_worker_whose_lease_was_taken_over_rolls_back() {
    let world = World::new().await;
    world.script.steps(1, [Step::Wait]);
    let first = world
        .service()
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    world.feed(&Ping { number: 1 });
    world.script.entered().await;
    // The lease runs out while the handler is still at work.
    sqlx::query("UPDATE wh_inbox SET due_at = now() - interval '1 second'")
        .execute(&world.pool)
        .await
        .expect("end the lease");
    let second = world
        .service()
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    wait_until("the second instance is done", || async {
        second.counts().completed + first.counts().completed == 1
    })
    .await;
    world.script.go();
    wait_until("the first one noticed", || async {
        first.counts().leases_lost + second.counts().leases_lost >= 1
    })
    .await;
    world.quiet().await;
    assert_eq!(world.script.calls(1), 2);
    assert_eq!(world.effects("scripted", 1).await, 1);
    first.shutdown().await.expect("shutdown");
    second.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn handlers_of_one_message_fail_and_end_each_alone() {
    let world = World::new().await;
    world.script.steps(1, [Step::Fail, Step::Fail, Step::Fail]);
    let app = world
        .service()
        .register::<scripted>()
        .register::<note_twice>()
        .start()
        .await
        .expect("start");
    world.feed(&Ping { number: 1 });
    world.dead_letters(1).await;
    world.quiet().await;
    assert_eq!(world.effects("scripted", 1).await, 0);
    assert_eq!(world.effects("note_twice", 1).await, 1);
    app.shutdown().await.expect("shutdown");
}

#[handler(max_attempts = 3, backoff = "5ms..10ms")]
async fn commits_and_fails(ping: Ping, cx: &mut HandlerContext<'_>) -> Result<(), BoxError> {
    sqlx::query(
        "INSERT INTO effects (handler, stream, number) VALUES ('commits_and_fails', '', $1)",
    )
    .bind(ping.number)
    .execute(cx.conn())
    .await?;
    sqlx::raw_sql("COMMIT").execute(cx.conn()).await?;
    Err("and then it failed".into())
}

#[tokio::test]
async fn a_handler_that_ends_its_own_transaction_and_fails_is_not_repeated_either() {
    let world = World::new().await;
    let service = world.service().register::<commits_and_fails>();
    let app = service.start().await.expect("start");
    world.feed(&Ping { number: 1 });
    world.dead_letters(1).await;
    assert_eq!(world.effects("commits_and_fails", 1).await, 1);
    let reason = "SELECT count(*) FROM wh_dead_letters WHERE reason = 'unfenced'";
    assert_eq!(world.count(reason).await, 1);
    app.shutdown().await.expect("shutdown");
}
