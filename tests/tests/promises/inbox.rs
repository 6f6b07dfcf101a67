//! P1: a message id is stored once within the retention window, and the window does not lie.

use chrono::{Duration as Days, Utc};
use uuid::Uuid;
use whizbang::{Envelope, store::Store};
use whizbang_postgres::PgStore;
use whizbang_tests::{Ping, World, note_twice, scripted};

/// An id that says so many days ago.
fn id_from(days: i64) -> Uuid {
    let time = Utc::now() - Days::days(days);
    let millis = u64::try_from(time.timestamp_millis()).expect("after 1970");
    Uuid::new_v7(uuid::Timestamp::from_unix(
        uuid::NoContext,
        millis / 1000,
        0,
    ))
}

#[tokio::test]
async fn a_message_delivered_ten_times_has_one_effect_for_each_handler() {
    let world = World::new().await;
    let app = world
        .service()
        .register::<scripted>()
        .register::<note_twice>()
        .start()
        .await
        .expect("start");
    let id = Uuid::now_v7();
    for _ in 0..10 {
        world.deliver(id, &Ping { number: 1 });
    }
    world.quiet().await;
    assert_eq!(world.effects("scripted", 1).await, 1);
    assert_eq!(world.effects("note_twice", 1).await, 1);
    world.deliver(id, &Ping { number: 1 });
    world.quiet().await;
    assert_eq!(world.effects("scripted", 1).await, 1);
    let counts = app.counts();
    assert_eq!((counts.stored, counts.duplicates), (1, 10));
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn opposite_batches_on_many_connections_store_each_id_once() {
    let world = World::new().await;
    let app = world
        .service()
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    app.shutdown().await.expect("shutdown");
    let envelopes: Vec<_> = (0..200)
        .map(|number| Envelope::new(&Ping { number }).expect("encode"))
        .collect();
    let store = PgStore::new(world.pool.clone());
    let mut tasks = Vec::new();
    for connection in 0..8 {
        let mut batch = envelopes.clone();
        if connection % 2 == 1 {
            batch.reverse();
        }
        let store = store.clone();
        tasks.push(tokio::spawn(async move {
            store
                .store_inbox(&batch, None)
                .await
                .expect("no deadlock surfaces")
        }));
    }
    let (mut stored, mut duplicates) = (0, 0);
    for task in tasks {
        let report = task.await.expect("no panic");
        stored += report.stored;
        duplicates += report.duplicates;
    }
    assert_eq!((stored, duplicates), (200, 1400));
    assert_eq!(world.count("SELECT count(*) FROM wh_inbox").await, 200);
}

#[tokio::test]
async fn a_known_id_with_another_payload_is_a_duplicate_that_is_counted() {
    let world = World::new().await;
    let app = world
        .service()
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    let id = world.feed(&Ping { number: 1 });
    world.quiet().await;
    world.deliver(id, &Ping { number: 2 });
    world.quiet().await;
    assert_eq!(world.effects("scripted", 2).await, 0);
    assert_eq!(app.counts().conflicts, 1);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn an_id_older_than_the_window_goes_to_the_dead_letters_once() {
    let world = World::new().await;
    let app = world
        .service()
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    let store = PgStore::new(world.pool.clone());
    store.maintain().await.expect("the horizon is there");
    let id = id_from(40);
    for _ in 0..3 {
        world.deliver(id, &Ping { number: 1 });
    }
    world.quiet().await;
    assert_eq!(world.effects("scripted", 1).await, 0);
    assert_eq!(
        world
            .count("SELECT count(*) FROM wh_dead_letters WHERE reason = 'too_old'")
            .await,
        1
    );
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn an_id_is_not_purged_while_its_message_waits_or_is_dead() {
    let world = World::new().await;
    world.script.steps(1, [whizbang_tests::Step::Permanent]);
    let app = world
        .service()
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    // Ids that hold no time of their own.
    let (id, done) = (Uuid::from_u128(1), Uuid::from_u128(2));
    world.deliver(id, &Ping { number: 1 });
    world.dead_letters(1).await;
    world.deliver(done, &Ping { number: 2 });
    world.quiet().await;
    sqlx::query("UPDATE wh_message_deduplication SET first_seen_at = now() - interval '90 days'")
        .execute(&world.pool)
        .await
        .expect("age the ids");
    let store = PgStore::new(world.pool.clone());
    store.maintain().await.expect("purge");
    let left: Vec<Uuid> = sqlx::query_scalar("SELECT message_id FROM wh_message_deduplication")
        .fetch_all(&world.pool)
        .await
        .expect("ids");
    assert_eq!(left, [id], "the dead letter keeps its id, {done} is gone");
    let letters = app.dead_letters(0, 10).await.expect("list");
    let ids: Vec<_> = letters.iter().map(|letter| letter.id).collect();
    let requeued = app.requeue(&ids).await.expect("requeue");
    assert_eq!(requeued[0].outcome, "requeued");
    world.deliver(id, &Ping { number: 1 });
    world.quiet().await;
    assert_eq!(world.effects("scripted", 1).await, 1);
    app.shutdown().await.expect("shutdown");
}

/// Received 31 days ago from a sender whose clock was two days fast: when it comes again, its id does
/// not look older than the window.
#[tokio::test]
async fn an_id_from_a_fast_clock_is_kept_until_its_own_time_is_over() {
    let world = World::new().await;
    let app = world.service().register::<scripted>().start().await;
    let app = app.expect("start");
    let store = PgStore::new(world.pool.clone());
    let (fast, slow) = (id_from(29), id_from(33));
    for id in [fast, slow] {
        world.deliver(id, &Ping { number: 1 });
    }
    world.quiet().await;
    sqlx::query(
        "UPDATE wh_message_deduplication SET first_seen_at = first_seen_at - interval '31 days'",
    )
    .execute(&world.pool)
    .await
    .expect("age the ids");
    store.maintain().await.expect("purge");
    let left: Vec<Uuid> = sqlx::query_scalar("SELECT message_id FROM wh_message_deduplication")
        .fetch_all(&world.pool)
        .await
        .expect("ids");
    assert_eq!(left, [fast]);
    for id in [fast, slow] {
        world.deliver(id, &Ping { number: 1 });
    }
    world.dead_letters(1).await;
    world.quiet().await;
    assert_eq!(world.effects("scripted", 1).await, 2, "one for each id");
    app.shutdown().await.expect("shutdown");
}
