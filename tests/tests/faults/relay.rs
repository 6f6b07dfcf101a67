//! F029 to F046, F077 and F100: the way from the outbox to a transport.

use std::time::Duration;

use uuid::Uuid;
use whizbang::{Backoff, store::Store, transport::Content};
use whizbang_postgres::{App, Builder, PgStore};
use whizbang_tests::{
    Faults, FlakyTransport, Noted, Pay, Ping, Stepped, World, note_stepped, pay, scripted,
    wait_until,
};

use super::support::{no_open_transactions, raw, run, store_after, until_blocked};

/// A service that relays to this broker.
fn relaying(world: &World, out: &FlakyTransport) -> Builder {
    world
        .service()
        .transport(out.clone())
        .register::<note_stepped>()
}

/// Publishes these steps of a stream, each in a transaction of its own.
async fn publish(world: &World, app: &App, stream: &str, numbers: std::ops::Range<i64>) {
    let dispatcher = app.dispatcher();
    for number in numbers {
        let mut tx = world.pool.begin().await.expect("begin");
        let step = Stepped {
            stream: stream.to_owned(),
            number,
        };
        dispatcher.publish(&mut tx, &step).await.expect("publish");
        tx.commit().await.expect("commit");
    }
}

/// The numbers of a stream as the broker first saw them.
fn seen(out: &FlakyTransport, stream: &str) -> Vec<i64> {
    let numbers = out.first_times();
    let steps = numbers
        .iter()
        .map(|envelope| envelope.payload.decode::<Stepped>());
    steps
        .map(|step| step.expect("a step"))
        .filter(|step| step.stream == stream)
        .map(|step| step.number)
        .collect()
}

async fn outbox_empty(world: &World) -> bool {
    world.count("SELECT count(*) FROM wh_outbox").await == 0
}

#[tokio::test]
async fn f029_nothing_leaves_before_the_commit_and_everything_after() {
    let world = World::new().await;
    sqlx::raw_sql("CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(29); RETURN NULL; END $$; CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION hold()")
        .execute(&world.pool)
        .await
        .expect("a trigger");
    let mut holder = world.pool.acquire().await.expect("a connection");
    run(&mut holder, "SELECT pg_advisory_lock(29)").await;
    let out = FlakyTransport::new("out");
    let app = world
        .service()
        .transport(out.clone())
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    world.feed(&Ping { number: 1 });
    // The handler has written and published, the completion is done, COMMIT has been sent.
    until_blocked(&world, "COMMIT").await;
    assert_eq!(world.script.calls(1), 1);
    // A row that anybody can see is either still there or was offered to the broker.
    assert!(
        outbox_empty(&world).await,
        "nobody sees it before the commit"
    );
    assert_eq!(out.offered(), 0, "not before the commit");
    assert_eq!(world.effects("scripted", 1).await, 0);
    run(&mut holder, "SELECT pg_advisory_unlock(29)").await;
    world.quiet().await;
    assert_eq!(out.accepted().len(), 1);
    assert_eq!(world.effects("scripted", 1).await, 1);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f037_f038_a_slow_transaction_is_not_overtaken_for_good() {
    let world = World::new().await;
    let out = FlakyTransport::new("out");
    let app = relaying(&world, &out).start().await.expect("start");
    let dispatcher = app.dispatcher();
    let mut slow = world.pool.begin().await.expect("begin");
    let early = Stepped {
        stream: "slow".into(),
        number: 0,
    };
    dispatcher
        .publish(&mut slow, &early)
        .await
        .expect("publish");
    // Rows with higher numbers pass for longer than any mark of where to look needs to settle.
    let began = std::time::Instant::now();
    let mut number = 0;
    while began.elapsed() < Duration::from_secs(11) {
        publish(&world, &app, "fast", number..number + 1).await;
        number += 1;
        wait_until("it has passed", || async {
            world.effects("note_stepped", number - 1).await >= 1
                && out.distinct() == usize::try_from(number).expect("small")
        })
        .await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(seen(&out, "slow"), [0; 0]);
    slow.commit().await.expect("commit");
    wait_until("the slow one has left", || async {
        seen(&out, "slow") == [0] && world.is_quiet().await
    })
    .await;
    let handled = world
        .count("SELECT count(*) FROM effects WHERE stream = 'slow'")
        .await;
    assert_eq!(handled, 1, "here too");
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f040_each_destination_has_a_message_of_its_own() {
    let world = World::new().await;
    let (good, bad) = (FlakyTransport::new("good"), FlakyTransport::new("bad"));
    bad.refuse(|_| true);
    let app = relaying(&world, &good)
        .transport(bad.clone())
        .configure(|config| config.max_attempts = 2)
        .start()
        .await
        .expect("start");
    let dispatcher = app.dispatcher();
    let mut tx = world.pool.begin().await.expect("begin");
    let step = Stepped {
        stream: "s".into(),
        number: 1,
    };
    dispatcher
        .publish(&mut tx, &step)
        .header("route", "one")
        .await
        .expect("publish");
    tx.commit().await.expect("commit");
    world.dead_letters(1).await;
    world.quiet().await;
    assert_eq!(world.effects("note_stepped", 1).await, 1);
    assert_eq!(good.accepted().len(), 1);
    let letters = app.dead_letters(0, 10).await.expect("list");
    assert_eq!(letters[0].destination.as_deref(), Some("bad"));
    assert_eq!(
        (letters[0].source.as_str(), letters[0].attempts),
        ("outbox", 2)
    );
    assert_eq!(letters[0].reason, "refused");
    bad.refuse_nothing();
    app.requeue(&[letters[0].id]).await.expect("requeue");
    wait_until("it went to the one destination", || async {
        bad.accepted().len() == 1 && outbox_empty(&world).await
    })
    .await;
    assert_eq!(good.accepted().len(), 1, "and to no other");
    let headers = &bad.accepted()[0].headers.headers;
    assert_eq!(headers.get("route").map(String::as_str), Some("one"));
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f043_f077_refused_and_lost_messages_keep_their_stream_in_order() {
    const COUNT: i64 = 60;
    let seed = 20_261_201;
    println!("seed {seed}");
    let world = World::new().await;
    let out = FlakyTransport::new("out");
    out.faults(
        Faults {
            refuse: 0.1,
            lose_answer: 0.1,
            answer_short: 0.1,
            pause: Duration::from_millis(1),
        },
        seed,
    );
    let mut apps = Vec::new();
    for _ in 0..3 {
        let store = PgStore::new(world.pool_of(5).await);
        let service = world
            .service_on(store)
            .transport(out.clone())
            .register::<note_stepped>()
            .configure(|config| {
                config.max_attempts = 50;
                config.relay_lease = Duration::from_millis(500);
                config.relay_batch = 20;
                config.backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(10));
            });
        apps.push(service.start().await.expect("start"));
    }
    for number in 0..COUNT {
        for stream in ["a", "b", "c", "d"] {
            publish(&world, &apps[0], stream, number..number + 1).await;
        }
    }
    wait_until("all have left", || async {
        out.distinct() == 4 * 60 && outbox_empty(&world).await
    })
    .await;
    for stream in ["a", "b", "c", "d"] {
        let expected: Vec<_> = (0..COUNT).collect();
        assert_eq!(seen(&out, stream), expected, "stream {stream}");
    }
    assert_eq!(world.count("SELECT count(*) FROM wh_dead_letters").await, 0);
    world.quiet().await;
    assert_eq!(world.count("SELECT count(*) FROM effects").await, 4 * COUNT);
    for app in apps {
        app.shutdown().await.expect("shutdown");
    }
}

#[tokio::test]
async fn a_refused_message_holds_back_its_stream_then_dies_and_can_be_requeued() {
    let world = World::new().await;
    let out = FlakyTransport::new("out");
    out.refuse(|envelope| {
        envelope
            .payload
            .decode::<Stepped>()
            .is_ok_and(|step| step.stream == "a" && step.number == 2)
    });
    let app = relaying(&world, &out)
        .configure(|config| {
            config.backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(100));
        })
        .start()
        .await
        .expect("start");
    publish(&world, &app, "a", 0..6).await;
    publish(&world, &app, "b", 0..6).await;
    wait_until("the other stream passed", || async {
        seen(&out, "b") == [0, 1, 2, 3, 4, 5]
    })
    .await;
    world.dead_letters(1).await;
    wait_until("the stream went on", || async {
        outbox_empty(&world).await
    })
    .await;
    assert_eq!(seen(&out, "a"), [0, 1, 3, 4, 5]);
    let letters = app.dead_letters(0, 10).await.expect("list");
    assert_eq!(letters[0].attempts, 3);
    out.refuse_nothing();
    let requeued = app.requeue(&[letters[0].id]).await.expect("requeue");
    assert_eq!(requeued[0].outcome, "requeued");
    wait_until("the requeued one left", || async {
        seen(&out, "a") == [0, 1, 3, 4, 5, 2] && outbox_empty(&world).await
    })
    .await;
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn nothing_behind_a_refused_message_leaves_before_it() {
    let world = World::new().await;
    let out = FlakyTransport::new("out");
    out.refuse(|envelope| {
        envelope
            .payload
            .decode::<Stepped>()
            .is_ok_and(|step| step.number == 0)
    });
    let app = relaying(&world, &out)
        .configure(|config| {
            config.max_attempts = 1_000_000;
            config.backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(5));
        })
        .start()
        .await
        .expect("start");
    publish(&world, &app, "a", 0..5).await;
    let refusals = |count: u64| {
        let app = &app;
        wait_until("it was refused again", move || async move {
            app.counts().refused >= count
        })
    };
    refusals(5).await;
    // What arrives while the head waits must not pass it either.
    publish(&world, &app, "a", 5..10).await;
    refusals(app.counts().refused + 5).await;
    assert_eq!(seen(&out, "a"), [0; 0]);
    out.refuse_nothing();
    wait_until("all have left", || async { outbox_empty(&world).await }).await;
    assert_eq!(seen(&out, "a"), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f044_an_outage_counts_nothing_and_does_not_stop_local_handlers() {
    let world = World::new().await;
    let out = FlakyTransport::new("out");
    out.away(true);
    let app = relaying(&world, &out).start().await.expect("start");
    publish(&world, &app, "s", 0..20).await;
    wait_until("the local handler has them all", || async {
        world.count("SELECT count(*) FROM effects").await == 20
    })
    .await;
    assert_eq!(out.offered(), 0);
    let waiting = world
        .count("SELECT count(*) FROM wh_outbox WHERE destination = 'out' AND attempts = 0")
        .await;
    assert_eq!(waiting, 20, "nothing is counted against a message");
    out.away(false);
    wait_until("all have left by themselves", || async {
        outbox_empty(&world).await
    })
    .await;
    assert_eq!(seen(&out, "s"), (0..20).collect::<Vec<_>>());
    assert_eq!(world.count("SELECT count(*) FROM wh_dead_letters").await, 0);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn an_acknowledgement_that_never_came_removes_nothing() {
    let world = World::new().await;
    let out = FlakyTransport::new("out");
    out.faults(
        Faults {
            lose_answer: 1.0,
            ..Faults::default()
        },
        1,
    );
    let app = relaying(&world, &out).start().await.expect("start");
    publish(&world, &app, "s", 0..3).await;
    wait_until("they were sent twice", || async {
        out.accepted().len() >= 6
    })
    .await;
    let waiting = world
        .count("SELECT count(*) FROM wh_outbox WHERE destination = 'out' AND attempts = 0 AND sent_at IS NOT NULL")
        .await;
    assert_eq!(waiting, 3);
    out.faults(Faults::default(), 1);
    wait_until("they were acknowledged", || async {
        outbox_empty(&world).await
    })
    .await;
    assert_eq!(seen(&out, "s"), [0, 1, 2]);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f046_a_destination_that_nobody_serves_is_refused_and_holds_up_nobody() {
    let world = World::new().await;
    let out = FlakyTransport::new("out");
    let app = relaying(&world, &out).start().await.expect("start");
    let dispatcher = app.dispatcher();
    let mut tx = world.pool.begin().await.expect("begin");
    for number in 0..50 {
        let step = Stepped {
            stream: "s".into(),
            number,
        };
        if number == 7 {
            let refused = dispatcher.publish(&mut tx, &step).to("nobody").await;
            let error = refused.expect_err("nobody serves it").to_string();
            assert!(
                error.contains("`nobody`") && error.contains("`out`"),
                "{error}"
            );
        } else {
            dispatcher.publish(&mut tx, &step).await.expect("publish");
        }
    }
    tx.commit().await.expect("commit");
    wait_until("the others have left", || async {
        out.distinct() == 49 && world.count("SELECT count(*) FROM effects").await == 49
    })
    .await;
    wait_until("nothing is left behind", || async {
        world.count("SELECT count(*) FROM wh_outbox").await == 0
    })
    .await;
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn a_slow_transport_is_not_sent_to_by_two_and_holds_up_no_handler() {
    let world = World::new().await;
    let out = FlakyTransport::new("out");
    out.hang(true);
    let one = relaying(&world, &out).start().await.expect("start");
    publish(&world, &one, "s", 0..5).await;
    wait_until("the local handler has them all", || async {
        world.count("SELECT count(*) FROM effects").await == 5
    })
    .await;
    let two = relaying(&world, &out).start().await.expect("start");
    publish(&world, &two, "s", 5..10).await;
    wait_until("and those of the other instance", || async {
        world.count("SELECT count(*) FROM effects").await == 10
    })
    .await;
    assert_eq!(out.crowd(), 1);
    out.hang(false);
    wait_until("all have left", || async { outbox_empty(&world).await }).await;
    assert_eq!(seen(&out, "s"), (0..10).collect::<Vec<_>>());
    assert_eq!(out.accepted().len(), 10, "each once");
    one.shutdown().await.expect("shutdown");
    two.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn own_events_that_come_back_are_acknowledged_and_own_commands_are_not_lost() {
    let world = World::new().await;
    let out = FlakyTransport::new("out");
    out.loop_back();
    let app = world
        .service()
        .transport(out.clone())
        .register::<scripted>()
        .register::<pay>()
        .route::<Pay>("out")
        .start()
        .await
        .expect("start");
    let dispatcher = app.dispatcher();
    let mut tx = world.pool.begin().await.expect("begin");
    for number in 0..10 {
        dispatcher
            .publish(&mut tx, &Ping { number })
            .await
            .expect("publish");
    }
    // This one goes to the broker only, and the broker gives it to the one service that has it.
    let command = Pay {
        payment_id: Uuid::now_v7(),
        cents: 500,
    };
    dispatcher.send(&mut tx, &command).await.expect("send");
    tx.commit().await.expect("commit");
    wait_until("it was paid", || async {
        world.count("SELECT count(*) FROM payments").await == 1
    })
    .await;
    wait_until("everything came back and is settled", || async {
        // Ten events, what their handlers published, the command, and what that published.
        out.settled().0 == 22 && world.is_quiet().await
    })
    .await;
    for number in 0..10 {
        assert_eq!(world.script.calls(number), 1, "{number}");
        assert_eq!(world.effects("scripted", number).await, 1, "{number}");
    }
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn what_others_send_arrives_once_in_whatever_order_and_number_it_comes() {
    let world = World::new().await;
    let broker = FlakyTransport::new("broker");
    let app = world
        .service()
        .intake(broker.clone())
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    let messages: Vec<_> = (0..40)
        .map(|number| raw(Uuid::now_v7(), &Ping { number }))
        .collect();
    for message in messages.iter().chain(messages.iter().rev()) {
        broker.deliver(Content::Message(Box::new(message.clone())));
    }
    wait_until("all are settled", || async {
        broker.settled() == (80, 0) && world.is_quiet().await
    })
    .await;
    assert_eq!(world.count("SELECT count(*) FROM effects").await, 40);
    let counts = app.counts();
    assert_eq!((counts.stored, counts.duplicates), (40, 40));
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f100_f101_one_relay_at_a_time_and_one_release_is_enough() {
    let world = World::new().await;
    let store = store_after(&world, world.service().register::<scripted>()).await;
    sqlx::raw_sql("INSERT INTO wh_outbox (message_id, destination, message_type, event_data, metadata) SELECT gen_random_uuid(), 'out', 'tests.noted', '{\"number\":1}', '{}' FROM generate_series(1, 3)")
        .execute(&world.pool)
        .await
        .expect("rows");
    let (one, two) = (
        (Uuid::now_v7(), Uuid::now_v7()),
        (Uuid::now_v7(), Uuid::now_v7()),
    );
    let claim = async |(token, instance), lease| {
        let rows = store.claim_outbox("out", 10, lease, token, instance).await;
        rows.expect("claim").len()
    };
    let long = Duration::from_secs(60);
    for _ in 0..10 {
        assert_eq!(claim(one, long).await, 3, "whoever has it may ask again");
        assert_eq!(claim(two, long).await, 0);
    }
    store.release_relay("out", one.1).await.expect("release");
    assert_eq!(claim(two, long).await, 3, "one release undoes ten claims");
    // The first one was cut off meanwhile; when it is back, it must find out that it has lost.
    assert_eq!(claim(one, long).await, 0);
    store.release_relay("out", one.1).await.expect("release");
    assert_eq!(claim(one, long).await, 0, "and cannot release the other's");
    sqlx::raw_sql("UPDATE wh_outbox_relays SET leased_until = now() - interval '1 second'")
        .execute(&world.pool)
        .await
        .expect("end the lease");
    assert_eq!(claim(one, long).await, 3);
    assert_eq!(
        claim(two, long).await,
        0,
        "the lease was not merely renewed"
    );
    no_open_transactions(&world).await;
}

#[tokio::test]
async fn messages_that_handlers_publish_reach_the_broker_once_each() {
    let world = World::new().await;
    let out = FlakyTransport::new("out");
    for number in 0..10 {
        let steps = [whizbang_tests::Step::Fail, whizbang_tests::Step::Panic];
        world.script.steps(number, steps);
    }
    let app = world
        .service()
        .transport(out.clone())
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    for number in 0..10 {
        world.feed(&Ping { number });
    }
    world.quiet().await;
    let mut numbers: Vec<_> = out
        .accepted()
        .iter()
        .map(|envelope| envelope.payload.decode::<Noted>().expect("noted").number)
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..10).collect::<Vec<_>>());
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f041_a_row_set_aside_behind_one_that_is_being_settled_is_woken() {
    let world = World::new().await;
    let store = store_after(&world, world.service().register::<scripted>()).await;
    let (head, next) = (Uuid::now_v7(), Uuid::now_v7());
    for (id, retry) in [(head, Some("infinity")), (next, None)] {
        sqlx::query("INSERT INTO wh_outbox (message_id, destination, message_type, event_data, metadata, stream_id, retry_at) VALUES ($1, 'out', 'tests.noted', '{\"number\":1}', '{}', $2, $3::timestamptz)")
            .bind(id)
            .bind(Uuid::from_u128(1))
            .bind(retry)
            .execute(&world.pool)
            .await
            .expect("a row");
    }
    // One relay looks and finds the second row behind the first, while another, which has lost
    // its lease, still gets the answer for the first.
    let (token, instance) = (Uuid::now_v7(), Uuid::now_v7());
    let mut looking = world.pool.begin().await.expect("begin");
    sqlx::query("SELECT claim_outbox('out', 10, '1 minute', $1, $2)")
        .bind(token)
        .bind(instance)
        .execute(&mut *looking)
        .await
        .expect("claim");
    let settling = {
        let store = store.clone();
        tokio::spawn(async move { store.complete_outbox("out", Uuid::now_v7(), &[head]).await })
    };
    until_blocked(&world, "complete_outbox_published").await;
    looking.commit().await.expect("commit");
    assert_eq!(settling.await.expect("no panic").expect("settled"), 1);
    let lease = Duration::from_secs(60);
    let rows = store.claim_outbox("out", 10, lease, token, instance).await;
    let ids: Vec<_> = rows
        .expect("claim")
        .iter()
        .map(|row| row.envelope.id)
        .collect();
    assert_eq!(ids, [next]);
}

#[tokio::test]
async fn rows_beyond_those_set_aside_belong_to_their_streams_as_well() {
    let world = World::new().await;
    let store = store_after(&world, world.service().register::<scripted>()).await;
    let head = Uuid::now_v7();
    // A refused head, 300 rows behind it, and one row of another stream behind them all.
    sqlx::query("INSERT INTO wh_outbox (message_id, destination, message_type, event_data, metadata, stream_id, retry_at) SELECT CASE WHEN n = 0 THEN $1 ELSE gen_random_uuid() END, 'out', 'tests.noted', '{}', '{}', CASE WHEN n = 301 THEN $2 ELSE $1 END, CASE WHEN n = 0 THEN now() + interval '1 hour' END FROM generate_series(0, 301) n ORDER BY n")
        .bind(head)
        .bind(Uuid::from_u128(2))
        .execute(&world.pool)
        .await
        .expect("rows");
    let (token, instance) = (Uuid::now_v7(), Uuid::now_v7());
    let claim = async || {
        let lease = Duration::from_secs(60);
        let rows = store.claim_outbox("out", 10, lease, token, instance).await;
        let rows = rows.expect("claim");
        let streams = rows.iter().map(|row| row.envelope.stream.clone());
        let streams: Vec<_> = streams.map(|stream| stream.map(|key| key.id())).collect();
        let ids: Vec<_> = rows.iter().map(|row| row.envelope.id).collect();
        (ids, streams)
    };
    let mut found = Vec::new();
    for _ in 0..5 {
        found = claim().await.1;
        assert!(!found.contains(&Some(head)), "nothing passes the head");
    }
    assert_eq!(found, [Some(Uuid::from_u128(2))], "the other stream does");
    // The rows behind the head come in order, however few are taken at a time.
    let settled = store.complete_outbox("out", token, &[head]).await;
    assert_eq!(settled.expect("settle"), 1);
    let mut sequences = Vec::new();
    loop {
        let (ids, _) = claim().await;
        if ids.is_empty() {
            break;
        }
        for id in &ids {
            let sequence: i64 =
                sqlx::query_scalar("SELECT sequence FROM wh_outbox WHERE message_id = $1")
                    .bind(id)
                    .fetch_one(&world.pool)
                    .await
                    .expect("the row");
            sequences.push(sequence);
        }
        store
            .complete_outbox("out", token, &ids)
            .await
            .expect("settle");
    }
    assert_eq!(sequences.len(), 301);
    let other = 302;
    sequences.retain(|sequence| *sequence != other);
    assert!(sequences.is_sorted(), "{sequences:?}");
}
