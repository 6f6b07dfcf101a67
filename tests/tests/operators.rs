//! What operators and networks do to a service that runs: locks, odd values in its tables, rows
//! deleted by hand, passwords that change, and connections that go silent.

use std::time::Duration;

use sqlx::{PgPool, postgres::PgPoolOptions};
use whizbang::{BoxError, handler};
use whizbang_postgres::{Builder, LazyContext, PgStore};
use whizbang_tests::{
    Ping, Proxy, Step, Stepped, World, note_plain, note_stepped, note_twice, scripted, wait_until,
};

async fn run(world: &World, sql: &'static str) {
    let ran = sqlx::raw_sql(sql).execute(&world.pool).await;
    ran.expect(sql);
}

async fn effects(world: &World, count: i64) {
    wait_until("the effects are there", || async {
        world.count("SELECT count(*) FROM effects").await == count
    })
    .await;
}

#[tokio::test]
async fn a_statement_timeout_at_the_intake_is_no_fault_of_the_message() {
    let world = World::new().await;
    let options = world.connect_options();
    let pool = PgPoolOptions::new()
        .max_connections(6)
        .connect_with(options.options([("statement_timeout", "300ms")]))
        .await
        .expect("a pool");
    let service = world.service_on(PgStore::new(pool));
    let app = service.register::<scripted>().start().await.expect("start");
    let mut operator = world.pool.begin().await.expect("begin");
    sqlx::raw_sql("LOCK TABLE wh_inbox IN ACCESS EXCLUSIVE MODE")
        .execute(&mut *operator)
        .await
        .expect("lock");
    for number in 1..=5 {
        world.feed(&Ping { number });
    }
    // The statement is ended, and tried again, a few times.
    tokio::time::sleep(Duration::from_secs(2)).await;
    operator.rollback().await.expect("rollback");
    effects(&world, 5).await;
    let letters = "SELECT count(*) FROM wh_dead_letters";
    assert_eq!(world.count(letters).await, 0);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn heartbeats_follow_new_connect_options_of_the_pool() {
    let world = World::new().await;
    let old = Proxy::start(&world.connect_options()).await;
    let pool = old.pool(6);
    let app = world
        .service_on(PgStore::new(pool.clone()))
        .register::<scripted>()
        .configure(|config| config.heartbeat = Duration::from_millis(100))
        .start()
        .await
        .expect("start");
    pool.set_connect_options(world.connect_options());
    drop(old);
    let moved: f64 = sqlx::query_scalar("SELECT extract(epoch FROM clock_timestamp())::float8")
        .fetch_one(&world.pool)
        .await
        .expect("the time");
    wait_until("a heartbeat came by the new way", || async {
        sqlx::query_scalar("SELECT heartbeat_at > to_timestamp($1) + interval '1 second' FROM wh_service_instances")
            .bind(moved)
            .fetch_one(&world.pool)
            .await
            .expect("an instance")
    })
    .await;
    app.shutdown().await.expect("shutdown");
}

#[handler]
async fn lazily(ping: Ping, lazy: &mut LazyContext<'_>) -> Result<(), BoxError> {
    let cx = lazy.begin().await?;
    sqlx::query("INSERT INTO effects (handler, stream, number) VALUES ('lazily', '', $1)")
        .bind(ping.number)
        .execute(cx.conn())
        .await?;
    Ok(())
}

/// All connections go silent, those of the pool and those that the service keeps between messages;
/// new ones work.
async fn gets_over_silence(handlers: impl FnOnce(Builder) -> Builder) {
    let world = World::new().await;
    let proxy = Proxy::start(&world.connect_options()).await;
    let pool = proxy.pool(4);
    let store = PgStore::new(pool.clone()).answer_within(Duration::from_millis(500));
    let service = world.service_on(store).concurrency(2);
    let app = handlers(service).start().await.expect("start");
    warm_up(&pool).await;
    for number in 1..=4 {
        world.feed(&Ping { number });
    }
    effects(&world, 4).await;
    proxy.freeze();
    for number in 5..=30 {
        world.feed(&Ping { number });
    }
    effects(&world, 30).await;
    world.feed(&Ping { number: 31 });
    effects(&world, 31).await;
    assert!(pool.acquire().await.is_ok(), "the pool has connections");
    app.shutdown().await.expect("shutdown");
}

/// Opens all of the pool's connections.
async fn warm_up(pool: &PgPool) {
    let mut connections = Vec::new();
    for _ in 0..pool.options().get_max_connections() {
        connections.push(pool.acquire().await.expect("a connection"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_go_silent_do_not_eat_the_pool() {
    gets_over_silence(|service| service.register::<note_twice>()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lazy_begin_without_answer_does_not_eat_the_pool() {
    gets_over_silence(|service| service.register::<lazily>()).await;
}

#[tokio::test]
async fn an_infinite_schedule_can_be_looked_at() {
    let world = World::new().await;
    let app = world.service().register::<scripted>().start().await;
    let app = app.expect("start");
    let dispatcher = app.dispatcher();
    let mut tx = world.pool.begin().await.expect("begin");
    let ping = Ping { number: 1 };
    let later = dispatcher.publish(&mut tx, &ping);
    let later = later.after(Duration::from_secs(3600));
    later.await.expect("publish");
    tx.commit().await.expect("commit");
    run(&world, "UPDATE wh_outbox SET scheduled_at = 'infinity'").await;
    let status = PgStore::new(world.pool.clone()).status().await;
    let lines = status.expect("the status");
    let scheduled = lines.iter().find(|line| line.what == "outbox_scheduled");
    let scheduled = scheduled.expect("a line");
    assert_eq!((scheduled.count, scheduled.oldest), (1, None));
    let idle = lines.iter().find(|line| line.what == "inbox_due");
    assert_eq!(idle.expect("a line").oldest, None, "nothing since 1970");
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn infinite_times_of_a_row_stop_nothing() {
    let world = World::new().await;
    let app = world.service().register::<scripted>().start().await;
    let app = app.expect("start");
    app.pause("scripted");
    for number in 1..=3 {
        world.feed(&Ping { number });
    }
    wait_until("they are stored", || async {
        world.count("SELECT count(*) FROM wh_inbox").await == 3
    })
    .await;
    run(&world, "UPDATE wh_inbox SET due_at = '-infinity', received_at = 'infinity' WHERE sequence = (SELECT min(sequence) FROM wh_inbox)").await;
    app.resume("scripted");
    effects(&world, 3).await;
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn settings_that_only_look_like_times_are_replaced() {
    let world = World::new().await;
    let app = world.service().register::<scripted>().start().await;
    let app = app.expect("start");
    run(&world, "INSERT INTO wh_settings (setting_key, setting_value) VALUES ('dedup_purged_before', '2026-11-31T00:00:00Z'), ('dedup_purge_cursor', '2026-99-99T::Z') ON CONFLICT (setting_key) DO UPDATE SET setting_value = EXCLUDED.setting_value").await;
    for number in 1..=3 {
        world.feed(&Ping { number });
    }
    effects(&world, 3).await;
    let letters = "SELECT count(*) FROM wh_dead_letters";
    assert_eq!(world.count(letters).await, 0);
    run(&world, "SELECT * FROM perform_maintenance()").await;
    let mended = "SELECT count(*) FROM wh_settings WHERE setting_key = 'dedup_purged_before' AND setting_value::timestamptz < now()";
    assert_eq!(world.count(mended).await, 1);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn a_row_deleted_under_its_handler_does_not_hold_up_its_stream() {
    let world = World::new().await;
    world.script.steps(1, [Step::Wait]);
    let app = world
        .service()
        .register::<note_stepped>()
        .register::<note_plain>()
        // Longer than a test waits.
        .configure(|config| config.lease = Duration::from_secs(60))
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
    run(
        &world,
        "DELETE FROM wh_inbox WHERE sequence = (SELECT min(sequence) FROM wh_inbox)",
    )
    .await;
    world.script.go();
    wait_until("the next one is handled", || async {
        world.effects("note_stepped", 2).await == 1
    })
    .await;
    assert_eq!(world.effects("note_stepped", 1).await, 0);
    app.shutdown().await.expect("shutdown");
}
