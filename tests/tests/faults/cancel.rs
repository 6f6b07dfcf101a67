//! F199, F200 and F203: futures that are dropped at any point.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use uuid::Uuid;
use whizbang_postgres::PgStore;
use whizbang_tests::{Pay, Ping, Step, Stepped, World, note_stepped, pay, scripted};

use super::support::{no_open_transactions, patiently};

/// Gives up after so many polls.
struct Impatient<F> {
    future: Pin<Box<F>>,
    left: usize,
}

impl<F: Future> Future for Impatient<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        self.future.as_mut().poll(cx).map(Some)
    }
}

fn give_up_after<F: Future>(polls: usize, future: F) -> Impatient<F> {
    Impatient {
        future: Box::pin(future),
        left: polls,
    }
}

#[tokio::test]
async fn f199_an_execution_dropped_at_any_point_leaves_nothing_half_done() {
    let world = World::new().await;
    let store = PgStore::new(world.pool_of(4).await);
    let app = world
        .service_on(store)
        .register::<pay>()
        .start()
        .await
        .expect("start");
    let dispatcher = app.dispatcher();
    let mut finished = 0;
    for polls in 0..200 {
        let command = Pay {
            payment_id: Uuid::now_v7(),
            cents: 1_000 + i64::try_from(polls).expect("small"),
        };
        let execution = async { dispatcher.execute(command.clone()).await };
        let first = give_up_after(polls, execution).await;
        finished += i32::from(first.is_some());
        // The same key again, at once: the first execution is there as a whole or not at all.
        let receipt = dispatcher.execute(command.clone()).await.expect("execute");
        if let Some(first) = first {
            assert_eq!(first.expect("execute"), receipt);
        }
        let paid: i64 = sqlx::query_scalar("SELECT count(*) FROM payments WHERE cents = $1")
            .bind(command.cents)
            .fetch_one(&world.pool)
            .await
            .expect("a count");
        assert_eq!(paid, 1, "dropped after {polls} polls");
        if finished > 3 {
            break;
        }
    }
    assert!(finished > 3, "some executions got to their end");
    world.quiet().await;
    no_open_transactions(&world).await;
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f199_a_transaction_dropped_at_any_point_publishes_all_or_nothing() {
    let world = World::new().await;
    let store = PgStore::new(world.pool_of(4).await);
    let app = world
        .service_on(store)
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    let dispatcher = app.dispatcher();
    let mut finished = 0;
    for (polls, number) in (0..200).zip(0i64..) {
        let transaction = dispatcher.transaction(async |tx| {
            sqlx::query("INSERT INTO payments (cents) VALUES ($1)")
                .bind(number)
                .execute(&mut **tx)
                .await?;
            dispatcher.publish(tx, &Ping { number }).await?;
            anyhow::Ok(())
        });
        let ended = give_up_after(polls, transaction).await;
        finished += i64::from(ended.is_some());
        if finished > 3 {
            break;
        }
    }
    assert!(finished > 3, "some transactions got to their end");
    no_open_transactions(&world).await;
    world.quiet().await;
    let uneven = world
        .count("SELECT count(*) FROM (SELECT cents FROM payments EXCEPT ALL SELECT number FROM effects UNION ALL (SELECT number FROM effects EXCEPT ALL SELECT cents FROM payments)) u")
        .await;
    assert_eq!(
        uneven, 0,
        "what was written was published, and nothing else"
    );
    assert!(world.count("SELECT count(*) FROM payments").await >= finished);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f199_handlers_cut_off_at_random_leave_clean_connections() {
    const COUNT: i64 = 60;
    let seed = 20_261_204;
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let world = World::new().await;
    for number in 0..COUNT {
        // Some end just before the timeout, some just after it.
        let pause = Duration::from_millis(random.random_range(150..250));
        world.script.steps(number, [Step::Pause(pause)]);
    }
    let app = world
        .service()
        .configure(|config| config.handler_timeout = Duration::from_millis(200))
        .breaker(None)
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    for number in 0..COUNT {
        world.feed(&Ping { number });
    }
    patiently("all are done", || world.is_quiet()).await;
    for number in 0..COUNT {
        assert_eq!(world.effects("scripted", number).await, 1, "{number}");
    }
    assert!(app.counts().failed > 0, "some were cut off");
    app.shutdown().await.expect("shutdown");
    no_open_transactions(&world).await;
}

#[tokio::test]
async fn f200_services_dropped_in_the_middle_lose_and_double_nothing() {
    const COUNT: i64 = 240;
    let seed = 20_261_205;
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let world = World::new().await;
    let service = || {
        world
            .service()
            .configure(|config| {
                config.lease = Duration::from_millis(500);
                config.max_attempts = 100;
            })
            .register::<scripted>()
            .register::<note_stepped>()
    };
    for round in 0..12 {
        let app = Arc::new(service().start().await.expect("start"));
        for number in round * COUNT / 12..(round + 1) * COUNT / 12 {
            world.feed(&Ping { number });
            let stream = (number % 4).to_string();
            world.feed(&Stepped { stream, number });
        }
        let pause = Duration::from_millis(random.random_range(0..60));
        tokio::time::sleep(pause).await;
        if round % 2 == 0 {
            // The stop itself is dropped, wherever it has got to.
            let polls = random.random_range(0..6);
            let stopping = Arc::clone(&app);
            give_up_after(polls, async move { stopping.shutdown().await }).await;
        }
        drop(app);
    }
    let app = service().start().await.expect("start");
    patiently("all are done", || world.is_quiet()).await;
    for number in 0..COUNT {
        assert_eq!(world.effects("scripted", number).await, 1, "{number}");
        assert_eq!(world.effects("note_stepped", number).await, 1, "{number}");
    }
    assert_eq!(world.count("SELECT count(*) FROM wh_dead_letters").await, 0);
    app.shutdown().await.expect("shutdown");
    no_open_transactions(&world).await;
}

#[tokio::test]
async fn f203_a_shutdown_from_ten_tasks_ends_for_all_of_them() {
    let world = World::new().await;
    world
        .script
        .steps(1, [Step::Pause(Duration::from_millis(200))]);
    let app = world.service().register::<scripted>().start().await;
    let app = Arc::new(app.expect("start"));
    world.feed(&Ping { number: 1 });
    patiently("it runs", || async { world.script.calls(1) == 1 }).await;
    let stops: Vec<_> = (0..10)
        .map(|_| {
            let app = Arc::clone(&app);
            tokio::spawn(async move { app.shutdown().await })
        })
        .collect();
    for stop in stops {
        let ended = tokio::time::timeout(Duration::from_secs(20), stop).await;
        ended
            .expect("it ends")
            .expect("no panic")
            .expect("shutdown");
    }
    assert_eq!(world.effects("scripted", 1).await, 1);
    app.shutdown().await.expect("an eleventh");
}
