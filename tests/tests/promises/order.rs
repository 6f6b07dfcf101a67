//! P5: within a lane and stream one message commits at a time, in stored order.

use std::time::Duration;

use rand::{RngExt, SeedableRng, rngs::StdRng};
use whizbang_postgres::PgStore;
use whizbang_tests::{
    Ping, Step, Stepped, World, note_in_lane, note_stepped, note_twice, wait_until,
};

async fn order_of(world: &World, handler: &str, stream: &str) -> Vec<i64> {
    sqlx::query_scalar("SELECT number FROM effects WHERE handler = $1 AND stream = $2 ORDER BY id")
        .bind(handler)
        .bind(stream)
        .fetch_all(&world.pool)
        .await
        .expect("effects")
}

#[tokio::test]
async fn streams_keep_their_order_over_instances_and_retries() {
    let seed = 20_261_201;
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let world = World::new().await;
    for number in 0..200 {
        if random.random_bool(0.1) {
            world.script.steps(number, [Step::Fail]);
        }
    }
    let mut apps = Vec::new();
    for _ in 0..3 {
        apps.push(
            world
                .service()
                .register::<note_stepped>()
                .start()
                .await
                .expect("start"),
        );
    }
    let dispatcher = apps[0].dispatcher();
    for number in 0..200i64 {
        let mut tx = world.pool.begin().await.expect("begin");
        let stream = format!("stream {}", number % 5);
        dispatcher
            .publish(&mut tx, &Stepped { stream, number })
            .await
            .expect("publish");
        tx.commit().await.expect("commit");
    }
    wait_until("all effects", || async {
        world.count("SELECT count(*) FROM effects").await == 200
    })
    .await;
    world.quiet().await;
    for stream in 0..5 {
        let found = order_of(&world, "note_stepped", &format!("stream {stream}")).await;
        let expected: Vec<i64> = (0..200).filter(|number| number % 5 == stream).collect();
        assert_eq!(found, expected, "stream {stream}");
    }
    for app in apps {
        app.shutdown().await.expect("shutdown");
    }
}

#[tokio::test]
async fn a_failing_head_holds_back_its_own_stream_only() {
    let world = World::new().await;
    world
        .script
        .steps(1, [Step::Snooze(Duration::from_millis(700))]);
    let app = world
        .service()
        .register::<note_stepped>()
        .start()
        .await
        .expect("start");
    for number in 1..4 {
        world.feed(&Stepped {
            stream: "blocked".into(),
            number,
        });
    }
    world.feed(&Stepped {
        stream: "free".into(),
        number: 10,
    });
    wait_until("the free stream is done", || async {
        world.effects("note_stepped", 10).await == 1
    })
    .await;
    assert_eq!(
        order_of(&world, "note_stepped", "blocked").await,
        Vec::<i64>::new()
    );
    wait_until("the blocked stream is done", || async {
        order_of(&world, "note_stepped", "blocked").await == [1, 2, 3]
    })
    .await;
    world.quiet().await;
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn a_parked_stream_stops_until_its_dead_letter_is_dealt_with() {
    let world = World::new().await;
    world.script.steps(1, [Step::Fail]);
    let app = world
        .service()
        .register::<note_in_lane>()
        .start()
        .await
        .expect("start");
    for number in 1..4 {
        world.feed(&Stepped {
            stream: "careful".into(),
            number,
        });
    }
    world.feed(&Stepped {
        stream: "other".into(),
        number: 10,
    });
    world.dead_letters(1).await;
    wait_until("the other stream is done", || async {
        world.effects("note_in_lane", 10).await == 1
    })
    .await;
    assert_eq!(
        world.count("SELECT count(*) FROM wh_inbox").await,
        2,
        "the rest waits"
    );
    let letters = app.dead_letters(0, 10).await.expect("list");
    assert!(letters[0].parked);
    app.requeue(&[letters[0].id]).await.expect("requeue");
    world.quiet().await;
    assert_eq!(order_of(&world, "note_in_lane", "careful").await, [1, 2, 3]);
    assert_eq!(
        world.count("SELECT count(*) FROM wh_inbox_streams").await,
        0
    );
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn a_discarded_dead_letter_lets_the_stream_go_on() {
    let world = World::new().await;
    world.script.steps(1, [Step::Permanent]);
    let app = world
        .service()
        .register::<note_in_lane>()
        .start()
        .await
        .expect("start");
    for number in 1..4 {
        world.feed(&Stepped {
            stream: "careful".into(),
            number,
        });
    }
    world.dead_letters(1).await;
    let letters = app.dead_letters(0, 10).await.expect("list");
    assert_eq!(app.discard(&[letters[0].id]).await.expect("discard"), 1);
    world.quiet().await;
    assert_eq!(order_of(&world, "note_in_lane", "careful").await, [2, 3]);
    app.shutdown().await.expect("shutdown");
}

/// A delivery starts where the last ones were. It must not pass over what a transaction published
/// before that and commits after it, or the next message of the stream would come first.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_long_transaction_published_is_not_overtaken_by_a_later_one() {
    const STREAMS: usize = 20;
    /// Longer than a mark needs to settle.
    const LONG: Duration = Duration::from_secs(8);
    let world = World::new().await;
    let pool = world.pool_of(30).await;
    let app = world
        .service_on(PgStore::new(world.pool_of(10).await))
        .register::<note_stepped>()
        .register::<note_twice>()
        .start()
        .await
        .expect("start");
    let dispatcher = app.dispatcher();
    let step = |stream: usize, number| Stepped {
        stream: stream.to_string(),
        number,
    };
    let mut long = Vec::new();
    for stream in 0..STREAMS {
        let mut tx = pool.begin().await.expect("begin");
        let published = dispatcher.publish(&mut tx, &step(stream, 1)).await;
        published.expect("publish");
        long.push(tx);
    }
    let traffic = async {
        for number in 0.. {
            let mut tx = pool.begin().await.expect("begin");
            let ping = Ping { number };
            dispatcher.publish(&mut tx, &ping).await.expect("publish");
            tx.commit().await.expect("commit");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let ends = async {
        tokio::time::sleep(LONG).await;
        for (stream, tx) in long.into_iter().enumerate() {
            tx.commit().await.expect("commit");
            let mut tx = pool.begin().await.expect("begin");
            let published = dispatcher.publish(&mut tx, &step(stream, 2)).await;
            published.expect("publish");
            tx.commit().await.expect("commit");
            // At different moments between two looks from the start.
            tokio::time::sleep(Duration::from_millis(130)).await;
        }
    };
    tokio::select! {
        () = traffic => {}
        () = ends => {}
    }
    world.quiet().await;
    for stream in 0..STREAMS {
        let order = order_of(&world, "note_stepped", &stream.to_string()).await;
        assert_eq!(order, [1, 2], "stream {stream}");
    }
    app.shutdown().await.expect("shutdown");
}
