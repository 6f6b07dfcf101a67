//! Promises that were broken once: each test is a way in which it was done.

#![expect(
    clippy::disallowed_methods,
    reason = "old messages are made by the clock of a publisher"
)]

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::postgres::PgPoolOptions;
use tokio::time::{Instant, sleep};
use uuid::Uuid;
use whizbang::{BoxError, Command, ExecuteError, handler, idempotent_command};
use whizbang_postgres::{HandlerContext, LazyContext, PgStore};
use whizbang_tests::*;

async fn order_of(world: &World, stream: &str) -> Vec<i64> {
    sqlx::query_scalar("SELECT number FROM effects WHERE stream = $1 ORDER BY id")
        .bind(stream)
        .fetch_all(&world.pool)
        .await
        .expect("effects")
}

/// P5: transactions that do not overlap, the first one long, beside other traffic.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_transaction_that_published_early_is_not_overtaken() {
    let world = World::new().await;
    let pool = world.pool_of(40).await;
    let app = world
        .service_on(PgStore::new(world.pool_of(10).await))
        .register::<note_stepped>()
        .register::<note_twice>()
        .start()
        .await
        .expect("start");
    let dispatcher = app.dispatcher();
    let mut long = Vec::new();
    for stream in 0..20 {
        let mut tx = pool.begin().await.expect("begin");
        let stream = format!("s{stream}");
        dispatcher
            .publish(
                &mut tx,
                &Stepped {
                    stream: stream.clone(),
                    number: 1,
                },
            )
            .await
            .expect("publish");
        long.push((tx, stream));
    }
    // Other traffic of the service while they are open.
    let (d, p) = (dispatcher.clone(), pool.clone());
    let traffic = tokio::spawn(async move {
        for number in 0.. {
            let mut tx = p.begin().await.expect("begin");
            d.publish(&mut tx, &Ping { number }).await.expect("publish");
            tx.commit().await.expect("commit");
            sleep(Duration::from_millis(20)).await;
        }
    });
    sleep(Duration::from_secs(8)).await;
    for (tx, stream) in long {
        // First transaction ends ...
        tx.commit().await.expect("commit");
        // ... and the second begins after that.
        let mut tx = pool.begin().await.expect("begin");
        dispatcher
            .publish(&mut tx, &Stepped { stream, number: 2 })
            .await
            .expect("publish");
        tx.commit().await.expect("commit");
        sleep(Duration::from_millis(130)).await;
    }
    traffic.abort();
    sleep(Duration::from_secs(3)).await;
    let mut broken = Vec::new();
    for stream in 0..20 {
        let order = order_of(&world, &format!("s{stream}")).await;
        if order != [1, 2] {
            broken.push((stream, order));
        }
    }
    app.shutdown().await.expect("shutdown");
    assert!(broken.is_empty(), "{broken:?}");
}

/// P8: a table lock of an operator and a role with a statement timeout.
#[tokio::test]
async fn a_statement_timeout_at_the_intake_is_no_fault_of_the_message() {
    let world = World::new().await;
    let pool = PgPoolOptions::new()
        .max_connections(6)
        .connect_with(
            world
                .connect_options()
                .options([("statement_timeout", "300ms")]),
        )
        .await
        .expect("pool");
    let app = world
        .service_on(PgStore::new(pool))
        .register::<scripted>()
        .register::<note_plain>()
        .start()
        .await
        .expect("start");
    let mut operator = world.pool.begin().await.expect("begin");
    sqlx::raw_sql("LOCK TABLE wh_inbox IN ACCESS EXCLUSIVE MODE")
        .execute(&mut *operator)
        .await
        .expect("lock");
    for number in 1..=5 {
        world.feed(&Ping { number });
    }
    sleep(Duration::from_secs(4)).await;
    operator.rollback().await.expect("rollback");
    sleep(Duration::from_secs(2)).await;
    let letters: Vec<(String, String, Option<String>)> =
        sqlx::query_as("SELECT source, reason, error FROM wh_dead_letters")
            .fetch_all(&world.pool)
            .await
            .expect("letters");
    let effects = world.count("SELECT count(*) FROM effects").await;
    app.shutdown().await.expect("shutdown");
    assert_eq!(letters, vec![]);
    assert_eq!(effects, 5);
}

/// P10: rotated credentials or a moved server: the pool is told, the control connection is not.
#[tokio::test]
async fn heartbeats_follow_new_connect_options_of_the_pool() {
    let world = World::new().await;
    let old = Proxy::start(&world.connect_options()).await;
    let pool = old.pool(6);
    let app = world
        .service_on(PgStore::new(pool.clone()))
        .register::<scripted>()
        .register::<note_plain>()
        .configure(|config| {
            config.heartbeat = Duration::from_millis(200);
            config.dead_after = Duration::from_secs(2);
            config.lease = Duration::from_secs(3);
        })
        .start()
        .await
        .expect("start");
    pool.set_connect_options(world.connect_options());
    drop(old);
    // The pool goes on.
    world.feed(&Ping { number: 1 });
    wait_until("handled", || async {
        world.effects("scripted", 1).await == 1
    })
    .await;
    sleep(Duration::from_secs(3)).await;
    let silent: f64 = sqlx::query_scalar("SELECT extract(epoch FROM clock_timestamp() - heartbeat_at)::float8 FROM wh_service_instances")
        .fetch_one(&world.pool).await.expect("instance");
    let _ = app.shutdown().await;
    assert!(silent < 1.5, "silent for {silent} s");
}

#[handler(timeout = "20s")]
async fn lazily(ping: Ping, lazy: &mut LazyContext<'_>) -> Result<(), BoxError> {
    let cx = lazy.begin().await?;
    sqlx::query("INSERT INTO effects (handler, stream, number) VALUES ('lazily', '', $1)")
        .bind(ping.number)
        .execute(cx.conn())
        .await?;
    Ok(())
}

/// A lazy handler's `begin` that gets no answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_lazy_begin_without_answer_does_not_eat_the_pool() {
    let world = World::new().await;
    let proxy = Proxy::start(&world.connect_options()).await;
    let pool = PgPoolOptions::new()
        .max_connections(4)
        .test_before_acquire(false)
        .acquire_timeout(Duration::from_secs(2))
        .connect_lazy_with(proxy.connect_options());
    let store = PgStore::new(pool.clone()).answer_within(Duration::from_millis(500));
    let app = world
        .service_on(store)
        .register::<lazily>()
        .configure(|config| {
            config.concurrency = Some(2);
            config.idle_poll = Duration::from_secs(1);
        })
        .start()
        .await
        .expect("start");
    // Four warm connections.
    let mut warm = Vec::new();
    for _ in 0..4 {
        warm.push(pool.acquire().await.expect("warm"));
    }
    drop(warm);
    sleep(Duration::from_millis(200)).await;
    // Rows that wait, stored past the proxy.
    for number in 1..=4 {
        world.feed(&Ping { number });
    }
    wait_until("handled", || async {
        world.count("SELECT count(*) FROM effects").await == 4
    })
    .await;
    proxy.freeze();
    for number in 5..=30 {
        world.feed(&Ping { number });
    }
    wait_until("all are handled", || async {
        world.count("SELECT count(*) FROM effects").await == 30
    })
    .await;
    world.feed(&Ping { number: 99 });
    wait_until("it goes on", || async {
        world.count("SELECT count(*) FROM effects").await == 31
    })
    .await;
    assert!(pool.acquire().await.is_ok(), "the pool has connections");
    let _ = app.shutdown().await;
}

/// The same with an ordinary handler.
#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_do_not_eat_the_pool() {
    let world = World::new().await;
    let proxy = Proxy::start(&world.connect_options()).await;
    let pool = PgPoolOptions::new()
        .max_connections(4)
        .test_before_acquire(false)
        .acquire_timeout(Duration::from_secs(2))
        .connect_lazy_with(proxy.connect_options());
    let store = PgStore::new(pool.clone()).answer_within(Duration::from_millis(500));
    let app = world
        .service_on(store)
        .register::<note_twice>()
        .configure(|config| {
            config.concurrency = Some(2);
            config.idle_poll = Duration::from_secs(1);
        })
        .start()
        .await
        .expect("start");
    // Four warm connections.
    let mut warm = Vec::new();
    for _ in 0..4 {
        warm.push(pool.acquire().await.expect("warm"));
    }
    drop(warm);
    sleep(Duration::from_millis(200)).await;
    // Rows that wait, stored past the proxy.
    for number in 1..=4 {
        world.feed(&Ping { number });
    }
    wait_until("handled", || async {
        world.count("SELECT count(*) FROM effects").await == 4
    })
    .await;
    proxy.freeze();
    for number in 5..=30 {
        world.feed(&Ping { number });
    }
    wait_until("all are handled", || async {
        world.count("SELECT count(*) FROM effects").await == 30
    })
    .await;
    world.feed(&Ping { number: 99 });
    wait_until("it goes on", || async {
        world.count("SELECT count(*) FROM effects").await == 31
    })
    .await;
    assert!(pool.acquire().await.is_ok(), "the pool has connections");
    let _ = app.shutdown().await;
}

/// The pool alone: what becomes of the connection of a `begin` that got no answer.
#[handler(timeout = "20s")]
async fn slow_then_begin(
    ping: Ping,
    lazy: &mut LazyContext<'_>,
    whizbang::State(script): whizbang::State<Script>,
) -> Result<(), BoxError> {
    let _ = script;
    let cx = lazy.begin().await?;
    sqlx::query("INSERT INTO effects (handler, stream, number) VALUES ('slow_then_begin', '', $1)")
        .bind(ping.number)
        .execute(cx.conn())
        .await?;
    Ok(())
}

/// P2/P8: an effect twice: COMMIT inside the handler, and then an error.
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
async fn a_handler_that_commits_and_then_fails_does_not_run_again() {
    let world = World::new().await;
    let app = world
        .service()
        .register::<commits_and_fails>()
        .start()
        .await
        .expect("start");
    world.feed(&Ping { number: 1 });
    world.dead_letters(1).await;
    let reason: String = sqlx::query_scalar("SELECT reason || ': ' || error FROM wh_dead_letters")
        .fetch_one(&world.pool)
        .await
        .expect("letter");
    let effects = world.effects("commits_and_fails", 1).await;
    app.shutdown().await.expect("shutdown");
    assert_eq!(effects, 1, "{reason}");
    assert!(reason.starts_with("unfenced"), "{reason}");
}

/// An operator's infinity.
#[tokio::test]
async fn the_status_survives_an_infinite_schedule() {
    let world = World::new().await;
    let app = world
        .service()
        .register::<scripted>()
        .register::<note_plain>()
        .start()
        .await
        .expect("start");
    let dispatcher = app.dispatcher();
    let mut tx = world.pool.begin().await.expect("begin");
    dispatcher
        .publish(&mut tx, &Ping { number: 1 })
        .after(Duration::from_secs(3600))
        .await
        .expect("publish");
    tx.commit().await.expect("commit");
    sqlx::raw_sql("UPDATE wh_outbox SET scheduled_at = 'infinity'")
        .execute(&world.pool)
        .await
        .expect("operator");
    let store = PgStore::new(world.pool.clone());
    let status = tokio::spawn(async move { store.status().await.map(|lines| lines.len()) }).await;
    app.shutdown().await.expect("shutdown");
    assert!(status.is_ok(), "{status:?}");
}

/// An operator's infinity in a row that is claimed.
#[tokio::test]
async fn an_infinite_received_at_stops_nothing() {
    let world = World::new().await;
    let app = world
        .service()
        .register::<scripted>()
        .register::<note_plain>()
        .start()
        .await
        .expect("start");
    app.pause("scripted");
    for number in 1..=3 {
        world.feed(&Ping { number });
    }
    wait_until("stored", || async {
        world.count("SELECT count(*) FROM wh_inbox").await == 3
    })
    .await;
    sqlx::raw_sql("UPDATE wh_inbox SET received_at = 'infinity' WHERE message_id = (SELECT min(message_id::text)::uuid FROM wh_inbox)").execute(&world.pool).await.expect("operator");
    app.resume("scripted");
    sleep(Duration::from_secs(5)).await;
    let effects = world.count("SELECT count(*) FROM effects").await;
    let _ = app.shutdown().await;
    assert!(effects >= 2, "{effects} effects");
}

/// docs/bad-input.md: "`dedup_purged_before` that is no time: the retention is used in its place".
#[tokio::test]
async fn a_horizon_that_only_looks_like_a_time_is_replaced() {
    let world = World::new().await;
    let app = world
        .service()
        .register::<scripted>()
        .register::<note_plain>()
        .start()
        .await
        .expect("start");
    sqlx::raw_sql("INSERT INTO wh_settings (setting_key, setting_value) VALUES ('dedup_purged_before', '2026-11-31T00:00:00Z') ON CONFLICT (setting_key) DO UPDATE SET setting_value = EXCLUDED.setting_value").execute(&world.pool).await.expect("operator");
    for number in 1..=3 {
        world.feed(&Ping { number });
    }
    sleep(Duration::from_secs(3)).await;
    let letters: Vec<(String, Option<String>)> =
        sqlx::query_as("SELECT reason, error FROM wh_dead_letters")
            .fetch_all(&world.pool)
            .await
            .expect("letters");
    let effects = world.count("SELECT count(*) FROM effects").await;
    let _ = app.shutdown().await;
    assert_eq!(effects, 3, "{letters:?}");
}

/// A row deleted by hand while it runs: the rest of the stream.
#[tokio::test]
async fn a_row_deleted_under_its_handler_does_not_hold_up_its_stream() {
    let world = World::new().await;
    world.script.steps(1, [Step::Wait]);
    let app = world
        .service()
        .register::<note_stepped>()
        .configure(|c| c.lease = Duration::from_secs(8))
        .start()
        .await
        .expect("start");
    for number in 1..=2 {
        world.feed(&Stepped {
            stream: "s".into(),
            number,
        });
    }
    world.script.entered().await;
    sqlx::raw_sql("DELETE FROM wh_inbox WHERE sequence = (SELECT min(sequence) FROM wh_inbox)")
        .execute(&world.pool)
        .await
        .expect("operator");
    let since = Instant::now();
    world.script.go();
    wait_until("2 is done", || async {
        world.effects("note_stepped", 2).await == 1
    })
    .await;
    let took = since.elapsed();
    let _ = app.shutdown().await;
    assert!(took < Duration::from_secs(3), "{took:?}");
}

/// A store whose answer was lost commits after its leases were released.
#[tokio::test]
async fn a_store_that_commits_after_the_first_release_is_released_too() {
    let world = World::new().await;
    let store = PgStore::new(world.pool_of(6).await).answer_within(Duration::from_millis(500));
    let app = world
        .service_on(store)
        .register::<note_stepped>()
        .register::<scripted>()
        .register::<note_plain>()
        .start()
        .await
        .expect("start");
    let id = Uuid::now_v7();
    let mut other = world.pool.begin().await.expect("begin");
    sqlx::query("INSERT INTO wh_message_deduplication (message_id) VALUES ($1)")
        .bind(id)
        .execute(&mut *other)
        .await
        .expect("insert");
    world.deliver(id, &Ping { number: 1 });
    sleep(Duration::from_millis(2500)).await;
    other.rollback().await.expect("rollback");
    sleep(Duration::from_millis(1500)).await;
    let rows: Vec<(i32, bool, String)> = sqlx::query_as(
        "SELECT losses, lease_token IS NOT NULL, (due_at - now())::text FROM wh_inbox",
    )
    .fetch_all(&world.pool)
    .await
    .expect("rows");
    let effects = world.effects("scripted", 1).await;
    let _ = app.shutdown().await;
    assert_eq!(effects, 1, "{rows:?}");
}

#[derive(Debug, Clone, Serialize, Deserialize, Command)]
#[message(name = "breaker.measure", reply = Measured)]
struct Measure {
    id: String,
    recurse: bool,
    split: bool,
}
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Measured {
    value: f64,
}

#[idempotent_command(key = id)]
async fn measure(command: Measure, cx: &mut HandlerContext<'_>) -> Result<Measured, BoxError> {
    sqlx::query("INSERT INTO effects (handler, stream, number) VALUES ('measure', $1, 1)")
        .bind(&command.id)
        .execute(cx.conn())
        .await?;
    if command.recurse {
        cx.execute(Measure {
            recurse: false,
            ..command.clone()
        })
        .await?;
    }
    if command.split {
        sqlx::raw_sql("COMMIT; BEGIN").execute(cx.conn()).await?;
        cx.execute(Measure {
            id: format!("{} inner", command.id),
            recurse: false,
            split: false,
        })
        .await?;
        sqlx::query("INSERT INTO effects (handler, stream, number) VALUES ('measure', $1, 2)")
            .bind(&command.id)
            .execute(cx.conn())
            .await?;
        return Ok(Measured { value: 1.0 });
    }
    Ok(Measured {
        value: if command.id == "a" { f64::NAN } else { 1.0 },
    })
}

/// The reply cannot be read back: executed, committed, and every answer is an error.
#[tokio::test]
async fn a_reply_that_cannot_be_read_back_is_not_committed() {
    let world = World::new().await;
    let app = world
        .service()
        .register::<measure>()
        .start()
        .await
        .expect("start");
    let answer = app
        .dispatcher()
        .execute(Measure {
            id: "a".into(),
            recurse: false,
            split: false,
        })
        .await;
    let effects = world.count("SELECT count(*) FROM effects").await;
    let _ = app.shutdown().await;
    assert!(
        !(matches!(answer, Err(ExecuteError::Reply { .. })) && effects == 1),
        "committed and then refused: {answer:?}"
    );
}

/// The fence of a command is given back by a command inside it.
#[tokio::test]
async fn an_inner_command_does_not_speak_for_the_outer_one() {
    let world = World::new().await;
    let app = world
        .service()
        .register::<measure>()
        .start()
        .await
        .expect("start");
    let answer = app
        .dispatcher()
        .execute(Measure {
            id: "split".into(),
            recurse: false,
            split: true,
        })
        .await;
    let _ = app.shutdown().await;
    assert!(matches!(answer, Err(ExecuteError::Unfenced)), "{answer:?}");
}

/// `execute_in` and a handler that ended the transaction: which error?
#[tokio::test]
async fn execute_in_says_that_the_handler_ended_the_transaction() {
    let world = World::new().await;
    world.script.steps(9, [Step::Commit]);
    let app = world
        .service()
        .register::<pay>()
        .register::<note_plain>()
        .start()
        .await
        .expect("start");
    let mut tx = world.pool.begin().await.expect("begin");
    let ended = app
        .dispatcher()
        .execute_in(
            &mut tx,
            Pay {
                payment_id: Uuid::now_v7(),
                cents: 9,
            },
        )
        .await;
    drop(tx);
    let _ = app.shutdown().await;
    assert!(matches!(ended, Err(ExecuteError::Unfenced)), "{ended:?}");
}

/// P1: a fast clock at the sender and a repeat after the id was purged.
#[tokio::test]
async fn an_id_from_a_fast_clock_is_kept_until_its_own_time_is_over() {
    let world = World::new().await;
    let app = world
        .service()
        .register::<scripted>()
        .register::<note_plain>()
        .start()
        .await
        .expect("start");
    // Today is day 31. The id was made and delivered on day 0 by a sender whose clock said day 2.
    let day_2 = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        - Duration::from_secs(29 * 86_400);
    let id = Uuid::new_v7(uuid::Timestamp::from_unix(
        uuid::NoContext,
        day_2.as_secs(),
        0,
    ));
    world.deliver(id, &Ping { number: 1 });
    wait_until("handled", || async {
        world.effects("scripted", 1).await == 1
    })
    .await;
    world.quiet().await;
    sqlx::raw_sql(
        "UPDATE wh_message_deduplication SET first_seen_at = first_seen_at - interval '31 days'",
    )
    .execute(&world.pool)
    .await
    .expect("time");
    for _ in 0..3 {
        sqlx::raw_sql("SELECT * FROM perform_maintenance()")
            .execute(&world.pool)
            .await
            .expect("maintenance");
    }
    world.deliver(id, &Ping { number: 1 });
    sleep(Duration::from_millis(500)).await;
    world.quiet().await;
    let effects = world.effects("scripted", 1).await;
    let _ = app.shutdown().await;
    assert_eq!(effects, 1);
}
