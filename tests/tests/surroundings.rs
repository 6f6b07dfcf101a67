//! Settings of the server that a service finds and cannot choose, and a server that turns into a
//! standby under it.

use std::{fs, os::unix::fs::MetadataExt, process::Command, time::Duration};

use sqlx::{PgPool, postgres::PgPoolOptions};
use uuid::Uuid;
use whizbang::{
    BoxError, Envelope, StoreErrorKind, handler,
    store::{Isolation, Lease, Store, TransactionOptions},
};
use whizbang_postgres::{Builder, HandlerContext, PgStore, embedded::Server};
use whizbang_tests::{
    Pay, Ping, Script, Step, Stepped, World, note_stepped, pay, scripted, wait_until,
};

/// Longer than the timeouts that the server is set to below.
const LONG: Duration = Duration::from_millis(900);

/// A statement that takes long.
#[handler]
async fn slow_statement(ping: Ping, cx: &mut HandlerContext<'_>) -> Result<(), BoxError> {
    sqlx::query("SELECT pg_sleep($1)")
        .bind(LONG.as_secs_f64())
        .execute(cx.conn())
        .await?;
    sqlx::query("INSERT INTO effects (handler, stream, number) VALUES ('slow_statement', '', $1)")
        .bind(ping.number)
        .execute(cx.conn())
        .await?;
    Ok(())
}

fn service(world: &World, pool: &PgPool) -> Builder {
    world
        .service_on(PgStore::new(pool.clone()))
        .register::<scripted>()
        .register::<slow_statement>()
        .register::<note_stepped>()
        .register::<pay>()
}

async fn count(pool: &PgPool, sql: &'static str) -> i64 {
    let counted = sqlx::query_scalar(sql).fetch_one(pool).await;
    counted.expect("a count")
}

const WAITING: &str =
    "SELECT (SELECT count(*) FROM public.wh_inbox) + (SELECT count(*) FROM public.wh_outbox)";

/// Everything a service does, once: streams, retries, schedules, commands and housekeeping, by a
/// service whose sessions have these settings.
async fn works_with(world: &World, settings: &[(&str, &str)]) {
    let options = world.connect_options().options(settings.iter().copied());
    let pool = PgPoolOptions::new()
        .max_connections(8)
        .connect_with(options)
        .await
        .expect("a pool");
    // A failed attempt, a handler that is idle in its transaction, and a dead letter.
    world.script.steps(1, [Step::Fail]);
    world.script.steps(2, [Step::Pause(LONG)]);
    world.script.steps(3, [Step::Permanent]);
    let app = service(world, &pool)
        .configure(|config| config.maintenance = Duration::from_millis(200))
        .start()
        .await
        .expect("start");
    for number in 0..6 {
        world.feed(&Ping { number });
        let stream = (number % 2).to_string();
        world.feed(&Stepped { stream, number });
    }
    let dispatcher = app.dispatcher();
    let mut tx = pool.begin().await.expect("begin");
    dispatcher
        .publish(&mut tx, &Ping { number: 6 })
        .after(Duration::from_millis(300))
        .await
        .expect("publish");
    tx.commit().await.expect("commit");
    let payment_id = Uuid::now_v7();
    let mut receipts = Vec::new();
    for _ in 0..2 {
        let payment = Pay {
            payment_id,
            cents: 100,
        };
        receipts.push(dispatcher.execute(payment).await.expect("execute"));
    }
    wait_until("all is done", || async {
        world.transport.waiting() == 0 && count(&pool, WAITING).await == 0
    })
    .await;
    app.shutdown().await.expect("shutdown");
    assert_eq!(receipts[0], receipts[1]);
    assert_eq!(count(&pool, "SELECT count(*) FROM payments").await, 1);
    let letters = "SELECT count(*) FROM public.wh_dead_letters";
    assert_eq!(count(&pool, letters).await, 1, "the permanent failure");
    let effects: Vec<(String, i64)> =
        sqlx::query_as("SELECT handler, number FROM effects ORDER BY handler, number")
            .fetch_all(&pool)
            .await
            .expect("effects");
    let mut expected = Vec::new();
    expected.extend((0..6).map(|number| ("note_stepped".to_owned(), number)));
    let pings = (0..7).filter(|number| *number != 3);
    expected.extend(pings.map(|number| ("scripted".to_owned(), number)));
    expected.extend((0..7).map(|number| ("slow_statement".to_owned(), number)));
    assert_eq!(effects, expected);
}

#[tokio::test]
async fn timeouts_of_the_server_are_those_of_the_handlers_instead() {
    let settings = [
        ("statement_timeout", "500ms"),
        ("idle_in_transaction_session_timeout", "500ms"),
    ];
    works_with(&World::new().await, &settings).await;
}

#[tokio::test]
async fn a_lock_timeout_of_the_server_changes_nothing() {
    works_with(&World::new().await, &[("lock_timeout", "500ms")]).await;
}

#[tokio::test]
async fn a_search_path_elsewhere_with_tables_of_the_same_names_changes_nothing() {
    let world = World::new().await;
    let elsewhere = "CREATE SCHEMA elsewhere; ALTER TABLE effects SET SCHEMA elsewhere; ALTER TABLE payments SET SCHEMA elsewhere; CREATE TABLE elsewhere.wh_inbox (decoy int); CREATE TABLE elsewhere.wh_outbox (decoy int); CREATE TABLE elsewhere.wh_settings (decoy int); CREATE FUNCTION elsewhere.wh_setting_number(text, int) RETURNS int LANGUAGE sql AS 'SELECT 1 / 0'";
    sqlx::raw_sql(elsewhere)
        .execute(&world.pool)
        .await
        .expect("decoys");
    works_with(&world, &[("search_path", "elsewhere")]).await;
}

#[tokio::test]
async fn a_time_zone_far_away_changes_nothing() {
    for zone in ["Pacific/Kiritimati", "America/St_Johns"] {
        works_with(&World::new().await, &[("TimeZone", zone)]).await;
    }
}

#[tokio::test]
async fn other_formats_change_nothing() {
    let settings = [
        ("DateStyle", "SQL,DMY"),
        ("IntervalStyle", "sql_standard"),
        ("bytea_output", "escape"),
        ("standard_conforming_strings", "off"),
        ("xmloption", "document"),
        ("default_transaction_deferrable", "on"),
    ];
    works_with(&World::new().await, &settings).await;
}

#[tokio::test]
async fn sessions_that_are_read_only_by_default_change_nothing() {
    let world = World::new().await;
    let options = world
        .connect_options()
        .options([("default_transaction_read_only", "on")]);
    let pool = PgPool::connect_with(options).await.expect("a pool");
    let app = service(&world, &pool).start().await.expect("start");
    for number in 0..10 {
        world.feed(&Ping { number });
    }
    world.quiet().await;
    for number in 0..10 {
        assert_eq!(world.effects("scripted", number).await, 1);
    }
    app.shutdown().await.expect("shutdown");
}

/// Turns the server into a standby, as a failover does to the old primary.
async fn demote(mut server: Server) -> Server {
    tokio::task::spawn_blocking(move || {
        let data = server.folder().join("data");
        server.kill().expect("kill");
        let signal = data.join("standby.signal");
        fs::write(&signal, "").expect("the file that makes a standby");
        let owner = fs::metadata(&data).expect("the data");
        let given = Command::new("chown")
            .arg(format!("{}:{}", owner.uid(), owner.gid()))
            .arg(&signal)
            .status();
        assert!(given.expect("the program chown").success());
        server.restart().expect("restart");
        server
    })
    .await
    .expect("a thread")
}

/// Whatever way a transaction begins, a standby is an outage and nobody's fault.
async fn every_way_is_an_outage(store: &PgStore) {
    let envelope = Envelope::new(&Ping { number: 1 }).expect("test messages encode");
    let stored = store.store_inbox(&[envelope], None).await;
    let mut session = store.open().await.expect("a connection");
    let options = TransactionOptions {
        isolation: Isolation::ReadCommitted,
        fence: Uuid::now_v7(),
        timeout: Duration::from_secs(5),
    };
    let begun = store.begin(&mut session, &options).await;
    let lease = Lease {
        message_id: Uuid::now_v7(),
        handler: "scripted".to_owned(),
        lane: "scripted".to_owned(),
        stream_id: None,
        token: Uuid::now_v7(),
    };
    let renewed = store.renew(&[lease], Duration::from_secs(5)).await;
    let kinds = [
        ("store", stored.err().map(|error| error.kind)),
        ("begin", begun.err().map(|error| error.kind)),
        ("renew", renewed.err().map(|error| error.kind)),
    ];
    for (what, kind) in kinds {
        assert_eq!(kind, Some(StoreErrorKind::Unavailable), "{what}");
    }
}

#[tokio::test]
async fn a_server_that_turns_into_a_standby_costs_time_and_no_attempts() {
    const COUNT: i64 = 20;
    let server = tokio::task::spawn_blocking(Server::start)
        .await
        .expect("a thread")
        .expect("a server");
    server
        .create_database("failover")
        .await
        .expect("a database");
    let world = World::on(server.connect_options("failover")).await;
    let script: &Script = &world.script;
    for number in 0..COUNT {
        script.steps(number, [Step::Pause(Duration::from_millis(20))]);
    }
    let one_attempt = |config: &mut whizbang::RuntimeConfig| {
        config.max_attempts = 1;
        config.lease = Duration::from_secs(1);
        config.heartbeat = Duration::from_millis(200);
        config.dead_after = Duration::from_secs(2);
    };
    let app = world
        .service()
        .register::<scripted>()
        .register::<note_stepped>()
        .configure(one_attempt)
        .start()
        .await
        .expect("start");
    for number in 0..COUNT / 2 {
        world.feed(&Ping { number });
    }
    wait_until("it is at work", || async {
        world.count("SELECT count(*) FROM effects").await > 0
    })
    .await;
    let server = demote(server).await;
    for number in COUNT / 2..COUNT {
        world.feed(&Ping { number });
        let stream = (number % 2).to_string();
        world.feed(&Stepped { stream, number });
    }
    let store = PgStore::new(world.pool.clone());
    every_way_is_an_outage(&store).await;
    every_way_is_an_outage(&store.pooler(true)).await;
    let refused = world.service().register::<scripted>().start().await;
    let text = whizbang::error_chain(&refused.err().expect("a refusal"));
    assert!(text.contains("standby"), "{text}");
    // Long enough for every actor to try, and for leases to run out.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(world.count("SELECT count(*) FROM wh_dead_letters").await, 0);
    sqlx::query("SELECT pg_promote()")
        .execute(&world.pool)
        .await
        .expect("promote");
    world.quiet().await;
    for number in 0..COUNT {
        assert_eq!(world.effects("scripted", number).await, 1, "{number}");
        let stepped = i64::from(number >= COUNT / 2);
        assert_eq!(world.effects("note_stepped", number).await, stepped);
    }
    assert_eq!(world.count("SELECT count(*) FROM wh_dead_letters").await, 0);
    app.shutdown().await.expect("shutdown");
    drop(server);
}
