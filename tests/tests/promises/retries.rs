//! P6: retries end, and a message that kills its process does not take its neighbours along.

use std::time::Duration;

use whizbang::BreakerPolicy;
use whizbang_tests::{Ping, Step, World, note_twice, scripted, wait_until};

#[tokio::test]
async fn attempts_end_in_a_dead_letter_that_tells_all_and_can_be_requeued() {
    let world = World::new().await;
    world
        .script
        .steps(1, [Step::Fail, Step::Panic, Step::HugeError]);
    let app = world
        .service()
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    let id = world.feed(&Ping { number: 1 });
    world.dead_letters(1).await;
    let letters = app.dead_letters(0, 10).await.expect("list");
    let letter = &letters[0];
    assert_eq!(letter.message_id, Some(id));
    assert_eq!((letter.attempts, letter.reason.as_str()), (3, "failed"));
    assert_eq!(letter.payload.as_deref(), Some(r#"{"number":1}"#));
    let error = letter.error.clone().expect("the chain of errors");
    assert!(error.starts_with("it's \"bad\"\nand"), "{error:.40}");
    assert!(error.len() < 20_000);
    assert_eq!(world.script.calls(1), 3);
    app.requeue(&[letter.id]).await.expect("requeue");
    world.quiet().await;
    assert_eq!(world.effects("scripted", 1).await, 1);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn permanent_errors_end_at_once_and_snoozes_count_nothing() {
    let world = World::new().await;
    let nap = Step::Snooze(Duration::from_millis(5));
    world.script.steps(1, [Step::Permanent]).steps(2, [nap; 6]);
    let app = world
        .service()
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    world.feed(&Ping { number: 1 });
    world.feed(&Ping { number: 2 });
    world.dead_letters(1).await;
    wait_until("the snoozer got through", || async {
        world.effects("scripted", 2).await == 1
    })
    .await;
    assert_eq!(world.script.calls(1), 1);
    assert_eq!(world.script.calls(2), 7);
    world.quiet().await;
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn a_row_that_was_lost_runs_alone_and_only_losses_alone_end_it() {
    let world = World::new().await;
    let app = world
        .service()
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    app.shutdown().await.expect("shutdown");
    let store = whizbang_postgres::PgStore::new(world.pool.clone());
    let envelope = whizbang::Envelope::new(&Ping { number: 1 }).expect("encode");
    whizbang::store::Store::store_inbox(&store, &[envelope], None)
        .await
        .expect("store");
    let claim = whizbang::store::ClaimRequest {
        instance: uuid::Uuid::now_v7(),
        token: uuid::Uuid::now_v7(),
        lease: Duration::from_secs(60),
        room: vec![whizbang::store::Room {
            handler: "scripted".into(),
            lane: "scripted".into(),
            limit: 1,
        }],
        limit: 1,
        run: 1,
        rescan: true,
    };
    for (round, alone) in [(1u32, false), (2, true), (3, true)] {
        let works = whizbang::store::Store::claim(&store, &claim)
            .await
            .expect("claim");
        let lost_alone = round.saturating_sub(2);
        assert_eq!(
            (works[0].losses, works[0].attempts),
            (round - 1, lost_alone)
        );
        if alone {
            let started = whizbang::store::Store::mark_started(&store, &works[0].lease).await;
            assert!(started.expect("mark"));
        }
        sqlx::query("UPDATE wh_inbox SET due_at = now() - interval '1 second'")
            .execute(&world.pool)
            .await
            .expect("end the lease");
    }
    let app = world
        .service()
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    world.quiet().await;
    assert_eq!(
        world.effects("scripted", 1).await,
        1,
        "two losses alone are below three attempts"
    );
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn the_breaker_keeps_an_outage_from_filling_the_dead_letters() {
    let world = World::new().await;
    for number in 0..30 {
        world.script.steps(number, [Step::Fail, Step::Fail]);
    }
    let app = world
        .service()
        .register::<scripted>()
        .register::<note_twice>()
        .breaker(Some(BreakerPolicy {
            failures: 5,
            cool_down: Duration::from_millis(50),
            longest_cool_down: Duration::from_millis(100),
        }))
        .start()
        .await
        .expect("start");
    for number in 0..30 {
        world.feed(&Ping { number });
    }
    wait_until("the breaker opened", || async {
        app.health().tripped == ["scripted"] || world.is_quiet().await
    })
    .await;
    world.quiet().await;
    assert_eq!(world.count("SELECT count(*) FROM wh_dead_letters").await, 0);
    for number in 0..30 {
        assert_eq!(world.effects("scripted", number).await, 1);
        assert_eq!(world.effects("note_twice", number).await, 1);
    }
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn a_paused_handler_waits_and_others_go_on() {
    let world = World::new().await;
    let app = world
        .service()
        .register::<scripted>()
        .register::<note_twice>()
        .start()
        .await
        .expect("start");
    assert!(app.pause("scripted"));
    assert!(!app.pause("nobody"));
    world.feed(&Ping { number: 1 });
    wait_until("the other handler ran", || async {
        world.effects("note_twice", 1).await == 1
    })
    .await;
    assert_eq!(world.effects("scripted", 1).await, 0);
    assert_eq!(app.health().paused, ["scripted"]);
    app.resume("scripted");
    world.quiet().await;
    assert_eq!(world.effects("scripted", 1).await, 1);
    app.shutdown().await.expect("shutdown");
}
