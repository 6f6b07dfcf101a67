//! F106, F107 and H: connections that break, go silent, or lose the answer to a commit; and a
//! server that is killed.

use std::{collections::HashSet, time::Duration};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use uuid::Uuid;
use whizbang::{ExecuteError, PublishError};
use whizbang_postgres::{Builder, Dispatcher, PgStore, embedded::Server};
use whizbang_tests::{
    FlakyTransport, Noted, Pay, Ping, Proxy, Step, Stepped, World, note_plain, note_stepped, pay,
    scripted,
};

use super::support::{no_open_transactions, patiently};

const STREAMS: i64 = 4;

/// A service behind the proxy that does not wait long for anything.
fn behind(world: &World, proxy: &Proxy) -> Builder {
    let store = PgStore::new(proxy.pool(10)).answer_within(Duration::from_millis(700));
    restless(world.service_on(store))
}

/// Short leases, since what was claimed by a call whose answer is lost waits for their end.
fn restless(service: Builder) -> Builder {
    service
        .configure(|config| {
            config.lease = Duration::from_millis(1_500);
            config.handler_timeout = Duration::from_secs(2);
        })
        .register::<scripted>()
        .register::<note_stepped>()
        .register::<note_plain>()
        .register::<pay>()
}

/// Publishes a step, with the same id again while the database does not say that it is done. Stored
/// order is the order of these calls: an intake that is given a message back may store it later.
async fn publish(world: &World, dispatcher: &Dispatcher, number: i64) {
    let id = Uuid::now_v7();
    patiently("it is published", || async {
        let done = async {
            let mut tx = world.pool.begin().await?;
            dispatcher.publish(&mut tx, &step(number)).id(id).await?;
            tx.commit().await?;
            anyhow::Ok(())
        };
        match done.await {
            Err(error) => matches!(error.downcast_ref(), Some(PublishError::DuplicateId { .. })),
            Ok(()) => true,
        }
    })
    .await;
}

/// Publishes, but takes no part in the work.
async fn publisher(world: &World) -> Dispatcher {
    let app = restless(world.service()).start().await.expect("start");
    app.shutdown().await.expect("shutdown");
    app.dispatcher()
}

/// Every ping and every step was handled once, streams in order, and nothing died.
async fn balances(world: &World, pings: i64, steps: i64) {
    for number in 0..pings {
        assert_eq!(world.effects("scripted", number).await, 1, "ping {number}");
    }
    for stream in 0..STREAMS {
        let found: Vec<i64> =
            sqlx::query_scalar("SELECT number FROM effects WHERE stream = $1 ORDER BY id")
                .bind(stream.to_string())
                .fetch_all(&world.pool)
                .await
                .expect("effects");
        let expected: Vec<_> = (0..steps).filter(|n| n % STREAMS == stream).collect();
        assert_eq!(found, expected, "stream {stream}");
    }
    let letters: Vec<(Option<String>, String, Option<String>)> =
        sqlx::query_as("SELECT handler_name, reason, error FROM wh_dead_letters")
            .fetch_all(&world.pool)
            .await
            .expect("letters");
    assert!(letters.is_empty(), "{letters:?}");
}

fn step(number: i64) -> Stepped {
    Stepped {
        stream: (number % STREAMS).to_string(),
        number,
    }
}

#[tokio::test]
async fn f106_a_silent_connection_is_given_up_and_the_work_goes_on() {
    let world = World::new().await;
    let proxy = Proxy::start(&world.connect_options()).await;
    let publisher = publisher(&world).await;
    for number in 0..60 {
        world
            .script
            .steps(number, [Step::Pause(Duration::from_millis(20))]);
    }
    let app = behind(&world, &proxy).start().await.expect("start");
    for number in 0..30 {
        world.feed(&Ping { number });
        publish(&world, &publisher, number).await;
    }
    patiently("some are done", || async {
        world.count("SELECT count(*) FROM effects").await >= 10
    })
    .await;
    // Statements, transactions and the heartbeat's connection are cut off without a word.
    proxy.freeze();
    for number in 30..60 {
        world.feed(&Ping { number });
        publish(&world, &publisher, number).await;
    }
    patiently("all are done", || world.is_quiet()).await;
    balances(&world, 60, 60).await;
    // A silent connection may be met by a command as well: it ends, and a repeat gets through.
    proxy.freeze();
    let command = Pay {
        payment_id: Uuid::now_v7(),
        cents: 1_000,
    };
    patiently("the command is executed", || async {
        app.dispatcher().execute(command.clone()).await.is_ok()
    })
    .await;
    assert_eq!(world.count("SELECT count(*) FROM payments").await, 1);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f107_a_commit_without_an_answer_counts_once_or_is_made_again() {
    const COUNT: i64 = 100;
    let seed = 20_261_201;
    println!("seed {seed}");
    let world = World::new().await;
    let out = FlakyTransport::new("out");
    let proxy = Proxy::start(&world.connect_options()).await;
    let publisher = publisher(&world).await;
    let app = behind(&world, &proxy)
        .transport(out.clone())
        .start()
        .await
        .expect("start");
    proxy.lose_commits(0.2, seed);
    for number in 0..COUNT {
        world.feed(&Ping { number });
        publish(&world, &publisher, number).await;
    }
    let dispatcher = app.dispatcher();
    let mut unknown = 0;
    for cents in 1_000..1_040 {
        let command = Pay {
            payment_id: Uuid::now_v7(),
            cents,
        };
        // What the error asks for: the same command again.
        while let Err(error) = dispatcher.execute(command.clone()).await {
            unknown += i32::from(matches!(error, ExecuteError::Unknown(_)));
            let safe = matches!(error, ExecuteError::Unknown(_) | ExecuteError::Store(_));
            assert!(safe, "{error:?}");
        }
    }
    patiently("all are done", || world.is_quiet()).await;
    let (answers_lost, never_sent) = proxy.lost_commits();
    println!("{answers_lost} commits without answer, {never_sent} never sent, {unknown} unknown");
    assert!(answers_lost >= 10 && never_sent >= 10 && unknown >= 2);
    balances(&world, COUNT, COUNT).await;
    assert_eq!(world.count("SELECT count(*) FROM payments").await, 40);
    // What the handlers published left once each as well.
    let published: Vec<_> = out
        .accepted()
        .iter()
        .map(|envelope| envelope.payload.decode::<Noted>().expect("noted").number)
        .collect();
    let numbers: HashSet<_> = published.iter().copied().collect();
    assert_eq!((published.len(), numbers.len()), (140, 140));
    proxy.keep_commits();
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn connections_that_are_cut_at_random_cost_nothing_but_time() {
    const COUNT: i64 = 250;
    let seed = 20_261_202;
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let world = World::new().await;
    let proxy = Proxy::start(&world.connect_options()).await;
    let publisher = publisher(&world).await;
    for number in 0..COUNT {
        let pause = Duration::from_millis(random.random_range(0..15));
        world.script.steps(number, [Step::Pause(pause); 50]);
    }
    let one = behind(&world, &proxy).start().await.expect("start");
    let two = behind(&world, &proxy).start().await.expect("start");
    for number in 0..COUNT {
        world.feed(&Ping { number });
        publish(&world, &publisher, number).await;
        if number % 8 == 0 {
            proxy.cut();
            let pause = random.random_range(10..150);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    }
    patiently("all are done", || world.is_quiet()).await;
    balances(&world, COUNT, COUNT).await;
    one.shutdown().await.expect("shutdown");
    two.shutdown().await.expect("shutdown");
    no_open_transactions(&world).await;
}

#[tokio::test]
async fn a_slow_network_changes_nothing() {
    let world = World::new().await;
    let proxy = Proxy::start(&world.connect_options()).await;
    let publisher = publisher(&world).await;
    proxy.delay(Duration::from_millis(20));
    let app = behind(&world, &proxy).start().await.expect("start");
    for number in 0..20 {
        world.feed(&Ping { number });
        publish(&world, &publisher, number).await;
    }
    patiently("all are done", || world.is_quiet()).await;
    balances(&world, 20, 20).await;
    assert_eq!(app.counts().leases_lost, 0);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h_a_server_that_is_killed_under_load_loses_nothing_and_doubles_nothing() {
    const ROUNDS: i64 = 4;
    const COUNT: i64 = 80;
    let mut server = Server::builder().durable(true).start().expect("a server");
    server.create_database("ledger").await.expect("a database");
    let world = World::on(server.connect_options("ledger")).await;
    for number in 0..ROUNDS * COUNT {
        world
            .script
            .steps(number, [Step::Pause(Duration::from_millis(5)); 20]);
    }
    let publisher = publisher(&world).await;
    let mut apps = Vec::new();
    for _ in 0..2 {
        let store = PgStore::new(world.pool_of(8).await);
        apps.push(
            restless(world.service_on(store))
                .start()
                .await
                .expect("start"),
        );
    }
    for round in 0..ROUNDS {
        for number in round * COUNT..(round + 1) * COUNT {
            world.feed(&Ping { number });
            publish(&world, &publisher, number).await;
        }
        patiently("some of this round are done", || async {
            let done = world.count("SELECT count(*) FROM effects").await;
            done >= round * 2 * COUNT + 20
        })
        .await;
        tokio::task::block_in_place(|| {
            server.kill().expect("kill");
            server.restart().expect("restart");
        });
    }
    patiently("all are done", || world.is_quiet()).await;
    balances(&world, ROUNDS * COUNT, ROUNDS * COUNT).await;
    for app in apps {
        app.shutdown().await.expect("shutdown");
    }
}
