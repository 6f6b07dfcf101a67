//! F001 to F023: who has seen a message before.

use std::time::Duration;

use chrono::{Duration as Days, Utc};
use uuid::Uuid;
use whizbang::{store::Store, transport::InProcess};
use whizbang_postgres::PgStore;
use whizbang_tests::{
    Account, Burst, FlakyTransport, Pay, Ping, Step, Stepped, Withdraw, World, emit_many, narrow,
    note_plain, note_twice, outside_after, pay, scripted, wait_until, withdraw,
};

use super::support::{claim, envelope, raw, store_after, until_blocked};

#[tokio::test]
async fn f001_f008_one_id_at_two_instances_at_once_runs_once() {
    let world = World::new().await;
    world
        .script
        .steps(1, [Step::Pause(Duration::from_millis(300))]);
    let (one, two) = (InProcess::new("one"), InProcess::new("two"));
    let service = || world.service().register::<outside_after>();
    let first = service().intake(one.clone()).start().await.expect("start");
    let second = service().intake(two.clone()).start().await.expect("start");
    let message = raw(Uuid::now_v7(), &Ping { number: 1 });
    for _ in 0..5 {
        one.deliver(message.clone());
        two.deliver(message.clone());
    }
    wait_until("everything is settled", || async {
        one.waiting() + two.waiting() == 0 && world.is_quiet().await
    })
    .await;
    assert_eq!(world.effects("outside_after", 1).await, 1);
    assert_eq!(world.script.calls_outside(), 1, "called outside once");
    let counts = [first.counts(), second.counts()];
    assert_eq!(counts.iter().map(|count| count.stored).sum::<u64>(), 1);
    assert_eq!(counts.iter().map(|count| count.duplicates).sum::<u64>(), 9);
    first.shutdown().await.expect("shutdown");
    second.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f002_f028_a_burst_of_messages_leaves_once_however_often_it_is_asked_for() {
    const COUNT: i64 = 1_500;
    let world = World::new().await;
    let out = FlakyTransport::new("out");
    let app = world
        .service()
        .transport(out.clone())
        .register::<emit_many>()
        .register::<note_plain>()
        .start()
        .await
        .expect("start");
    let id = Uuid::now_v7();
    for _ in 0..20 {
        world.deliver(id, &Burst { count: COUNT });
    }
    wait_until("all have left", || async {
        out.distinct() == 1_500 && world.is_quiet().await
    })
    .await;
    assert_eq!(out.accepted().len(), 1_500, "each left once");
    assert_eq!(world.effects("emit_many", COUNT).await, 1);
    let handled = (0..COUNT).map(|number| world.script.calls(1_000_000 + number));
    assert!(handled.into_iter().all(|calls| calls == 1));
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f004_j_a_message_that_comes_again_after_the_window_is_refused_by_its_age() {
    let world = World::new().await;
    let service = || world.service().register::<scripted>();
    let app = service().start().await.expect("start");
    let born = Utc::now() - Days::days(40);
    let seconds = u64::try_from(born.timestamp()).expect("after 1970");
    let id = Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, seconds, 0));
    // Nothing was ever purged, so age does not matter yet.
    world.deliver(id, &Ping { number: 1 });
    world.quiet().await;
    assert_eq!(world.effects("scripted", 1).await, 1);
    app.shutdown().await.expect("shutdown");
    sqlx::raw_sql("UPDATE wh_message_deduplication SET first_seen_at = now() - interval '40 days'")
        .execute(&world.pool)
        .await
        .expect("let time pass");
    let store = PgStore::new(world.pool.clone());
    store.maintain().await.expect("purge");
    assert_eq!(
        world
            .count("SELECT count(*) FROM wh_message_deduplication")
            .await,
        0
    );
    let app = service().start().await.expect("start");
    for _ in 0..3 {
        world.deliver(id, &Ping { number: 1 });
    }
    world.dead_letters(1).await;
    world.quiet().await;
    assert_eq!(world.effects("scripted", 1).await, 1, "never a second time");
    assert_eq!(app.counts().too_old, 1);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f010_two_subjects_that_overlap_run_each_handler_once() {
    let world = World::new().await;
    let (narrow_subject, wide) = (InProcess::new("orders.eu"), InProcess::new("orders.*"));
    let app = world
        .service()
        .intake(narrow_subject.clone())
        .intake(wide.clone())
        .register::<scripted>()
        .register::<note_twice>()
        .start()
        .await
        .expect("start");
    for number in 0..30 {
        let message = raw(Uuid::now_v7(), &Ping { number });
        narrow_subject.deliver(message.clone());
        wide.deliver(message);
    }
    wait_until("everything is settled", || async {
        narrow_subject.waiting() + wide.waiting() == 0 && world.is_quiet().await
    })
    .await;
    for number in 0..30 {
        assert_eq!(world.effects("scripted", number).await, 1);
        assert_eq!(world.effects("note_twice", number).await, 1);
    }
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f011_an_id_that_is_rolled_back_was_never_there() {
    let world = World::new().await;
    let app = world
        .service()
        .register::<scripted>()
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
    until_blocked(&world, "store_inbox_messages").await;
    assert_eq!(app.counts().duplicates, 0, "no answer before the other one");
    other.rollback().await.expect("roll back");
    world.quiet().await;
    assert_eq!(world.effects("scripted", 1).await, 1);
    assert_eq!(app.counts().duplicates, 0);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f011_a_key_that_is_rolled_back_was_never_there() {
    let world = World::new().await;
    world.script.steps(9, [Step::Hang]);
    let service = || world.service().register::<pay>();
    let one = service().start().await.expect("start");
    let two = service().start().await.expect("start");
    let command = Pay {
        payment_id: Uuid::now_v7(),
        cents: 9,
    };
    let first = {
        let (dispatcher, command) = (one.dispatcher(), command.clone());
        tokio::spawn(async move { dispatcher.execute(command).await })
    };
    wait_until("the first one is at work", || async {
        world.script.calls(9) == 1
    })
    .await;
    let second = {
        let dispatcher = two.dispatcher();
        tokio::spawn(async move { dispatcher.execute(command).await })
    };
    wait_until("the second one has asked", || async {
        world
            .count("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%begin_command%' OR query = 'ROLLBACK'")
            .await
            > 0
    })
    .await;
    assert!(
        !second.is_finished(),
        "it waits and does not report a repeat"
    );
    first.abort();
    second.await.expect("no panic").expect("execute");
    assert_eq!(world.count("SELECT count(*) FROM payments").await, 1);
    assert_eq!(world.script.calls(9), 2);
    one.shutdown().await.expect("shutdown");
    two.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f013_keys_that_differ_in_a_nested_field_are_two_keys() {
    let world = World::new().await;
    let app = world
        .service()
        .register::<withdraw>()
        .start()
        .await
        .expect("start");
    let command = |branch, number: &str| Withdraw {
        account: Account {
            branch,
            number: number.into(),
        },
        request: "r".into(),
        cents: 5,
    };
    let keys = [
        command(1, "7"),
        command(2, "7"),
        command(1, "7r"),
        command(17, "r"),
    ];
    for _ in 0..2 {
        for key in &keys {
            app.dispatcher()
                .execute(key.clone())
                .await
                .expect("execute");
            world.feed(key);
        }
    }
    wait_until("the inbox has taken them", || async {
        app.counts().completed == 8
    })
    .await;
    assert_eq!(world.count("SELECT count(*) FROM payments").await, 4);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f014_a_limit_of_one_is_one() {
    let world = World::new().await;
    let service = || world.service().register::<narrow>();
    let store = store_after(&world, service()).await;
    let rows: Vec<_> = (0..40)
        .map(|number| {
            let stream = format!("{}", number % 4);
            envelope(Uuid::now_v7(), &Stepped { stream, number })
        })
        .collect();
    store.store_inbox(&rows, None).await.expect("store");
    assert_eq!(claim(&store, "narrow", 1).await.len(), 1);
    super::support::end_leases(&world).await;
    for number in 0..40 {
        world
            .script
            .steps(number, [Step::Pause(Duration::from_millis(2))]);
    }
    let app = service().start().await.expect("start");
    world.quiet().await;
    assert_eq!(world.count("SELECT count(*) FROM effects").await, 40);
    assert_eq!(world.script.most_at_work(), 1);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f016_fifty_repeats_at_once_are_repeats_at_every_default_isolation() {
    for default in ["serializable", "repeatable read"] {
        let world = World::new().await;
        let setting = [("default_transaction_isolation", default)];
        let pool = sqlx::postgres::PgPoolOptions::new()
            .max_connections(12)
            .connect_with(world.connect_options().options(setting))
            .await
            .expect("connect");
        let store = PgStore::new(pool);
        let app = world
            .service_on(store.clone())
            .register::<scripted>()
            .start()
            .await
            .expect("start");
        let message = envelope(Uuid::now_v7(), &Ping { number: 1 });
        let repeats: Vec<_> = (0..50)
            .map(|_| {
                let (store, message) = (store.clone(), message.clone());
                tokio::spawn(async move { store.store_inbox(&[message], None).await })
            })
            .collect();
        let mut stored = 0;
        for repeat in repeats {
            let report = repeat.await.expect("no panic");
            stored += report.expect("no conflict comes out").stored;
        }
        assert_eq!(stored, 1, "{default}");
        world.quiet().await;
        assert_eq!(world.effects("scripted", 1).await, 1, "{default}");
        assert_eq!(world.count("SELECT count(*) FROM wh_dead_letters").await, 0);
        app.shutdown().await.expect("shutdown");
    }
}

#[tokio::test]
async fn f020_a_repeat_is_no_reason_to_stop_retrying() {
    let world = World::new().await;
    world.script.steps(1, [Step::Fail, Step::Fail]);
    let app = world
        .service()
        .configure(|config| {
            config.backoff =
                whizbang::Backoff::new(Duration::from_millis(50), Duration::from_millis(100));
        })
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    let id = world.feed(&Ping { number: 1 });
    for call in 1..=3 {
        wait_until("the next attempt", || async {
            world.script.calls(1) >= call
        })
        .await;
        world.deliver(id, &Ping { number: 1 });
    }
    world.quiet().await;
    assert_eq!(world.script.calls(1), 3);
    assert_eq!(world.effects("scripted", 1).await, 1);
    assert_eq!(app.counts().duplicates, 3);
    app.shutdown().await.expect("shutdown");
}
