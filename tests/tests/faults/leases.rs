//! F022 and F049 to F076: leases that run out, are taken over, given back and counted.

use std::time::Duration;

use uuid::Uuid;
use whizbang::store::{Action, Report, Store};
use whizbang_postgres::PgStore;
use whizbang_tests::{
    Ping, Step, Stepped, World, note_plain, note_stepped, outside_after, scripted, wait_until,
};

use super::support::{claim, claim_of, end_leases, envelope, run, store_after, until_blocked};

const SHORT: Duration = Duration::from_millis(400);

/// A service whose leases last less than its handlers.
fn impatient(world: &World) -> whizbang_postgres::Builder {
    world.service().configure(|config| config.lease = SHORT)
}

#[tokio::test]
async fn f022_a_completion_that_takes_long_is_no_reason_to_run_again() {
    let world = World::new().await;
    sqlx::raw_sql("CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(22); RETURN OLD; END $$; CREATE TRIGGER hold BEFORE DELETE ON wh_inbox FOR EACH ROW WHEN (OLD.handler_name = 'note_plain') EXECUTE FUNCTION hold()")
        .execute(&world.pool)
        .await
        .expect("a trigger");
    let mut holder = world.pool.acquire().await.expect("a connection");
    run(&mut holder, "SELECT pg_advisory_lock(22)").await;
    let service = || {
        impatient(&world)
            .register::<scripted>()
            .register::<note_plain>()
    };
    let one = service().start().await.expect("start");
    let two = service().start().await.expect("start");
    world.feed(&Ping { number: 1 });
    until_blocked(&world, "complete_inbox_messages").await;
    // Three leases and more, in which the other instance would take the row if it could.
    tokio::time::sleep(SHORT * 3).await;
    assert_eq!(world.script.calls(1_000_001), 1);
    run(&mut holder, "SELECT pg_advisory_unlock(22)").await;
    world.quiet().await;
    one.shutdown().await.expect("shutdown");
    two.shutdown().await.expect("shutdown");
    let three = service().start().await.expect("start");
    world.feed(&Ping { number: 2 });
    wait_until("the next message ran", || async {
        world.script.calls(1_000_002) == 1
    })
    .await;
    assert_eq!(
        world.script.calls(1_000_001),
        1,
        "not after a restart either"
    );
    three.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f049_a_take_over_and_a_completion_exclude_each_other() {
    for stream in [None, Some("s")] {
        let world = World::new().await;
        let store = store_after(
            &world,
            world
                .service()
                .register::<scripted>()
                .register::<note_stepped>(),
        )
        .await;
        let (handler, message) = match stream {
            None => ("scripted", envelope(Uuid::now_v7(), &Ping { number: 1 })),
            Some(stream) => {
                let step = Stepped {
                    stream: stream.into(),
                    number: 1,
                };
                ("note_stepped", envelope(Uuid::now_v7(), &step))
            }
        };
        store.store_inbox(&[message], None).await.expect("store");
        let owner = claim(&store, handler, 1).await.remove(0).lease;
        end_leases(&world).await;
        // The take-over has looked and locked, but not committed, when the owner completes.
        let mut taker = world.pool.begin().await.expect("begin");
        let token = Uuid::now_v7();
        let taken: Vec<Uuid> = sqlx::query_scalar("SELECT message_id FROM claim_work(ARRAY[$1], ARRAY[1], ARRAY[$1], 1, 1, '1 minute', $2, $3, NULL)")
            .bind(handler)
            .bind(token)
            .bind(Uuid::now_v7())
            .fetch_all(&mut *taker)
            .await
            .expect("claim");
        assert_eq!(taken.len(), 1);
        let completing = {
            let (store, owner) = (store.clone(), owner.clone());
            tokio::spawn(async move { store.complete_batch(&[owner]).await })
        };
        until_blocked(&world, "complete_inbox_messages").await;
        taker.commit().await.expect("commit");
        let completed = completing.await.expect("no panic").expect("complete");
        assert_eq!(completed, [false], "the owner is told that it lost");
        let mut theirs = owner.clone();
        theirs.token = token;
        assert_eq!(
            store.complete_batch(&[theirs]).await.expect("complete"),
            [true]
        );
        assert_eq!(world.count("SELECT count(*) FROM wh_inbox").await, 0);
    }
}

#[tokio::test]
async fn f050_f076_a_long_handler_keeps_its_short_lease() {
    let world = World::new().await;
    world.script.steps(1, [Step::Pause(SHORT * 5)]);
    let one = impatient(&world)
        .register::<outside_after>()
        .start()
        .await
        .expect("start");
    world.feed(&Ping { number: 1 });
    wait_until("it runs", || async { world.script.calls(1) == 1 }).await;
    let two = impatient(&world)
        .register::<outside_after>()
        .start()
        .await
        .expect("start");
    world.quiet().await;
    assert_eq!(world.script.calls(1), 1);
    assert_eq!(world.script.calls_outside(), 1);
    let lost = one.counts().leases_lost + two.counts().leases_lost;
    assert_eq!(lost, 0);
    one.shutdown().await.expect("shutdown");
    two.shutdown().await.expect("shutdown");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f052_a_process_whose_threads_are_all_busy_loses_leases_but_doubles_nothing() {
    let world = World::new().await;
    for number in 0..2 {
        world.script.steps(number, [Step::Block(SHORT * 4)]);
    }
    for number in 0..6 {
        world.feed(&Ping { number });
    }
    let stop = std::sync::Arc::new(tokio::sync::Notify::new());
    let (options, script, transport, stopped) = (
        world.connect_options(),
        world.script.clone(),
        world.transport.clone(),
        std::sync::Arc::clone(&stop),
    );
    // A runtime of one thread: while it is blocked, nothing of that instance moves.
    let stuck = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let mut there = World::joined(options);
            (there.script, there.transport) = (script, transport);
            let app = impatient(&there).register::<scripted>().start().await;
            let app = app.expect("start");
            stopped.notified().await;
            app.shutdown().await.expect("shutdown");
            app.counts().leases_lost
        })
    });
    wait_until("it is stuck", || async { world.script.calls(0) == 1 }).await;
    let other = impatient(&world)
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    world.quiet().await;
    stop.notify_one();
    let lost = stuck.join().expect("no panic");
    assert!(lost >= 1, "the blocked one was told that it lost its lease");
    for number in 0..6 {
        assert_eq!(world.effects("scripted", number).await, 1, "{number}");
    }
    other.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f056_a_deleted_instance_keeps_nothing_and_joins_again() {
    let world = World::new().await;
    let store = store_after(&world, world.service().register::<scripted>()).await;
    let message = envelope(Uuid::now_v7(), &Ping { number: 1 });
    store.store_inbox(&[message], None).await.expect("store");
    // Leased by somebody who is on no list.
    let leased = store.claim(&claim_of("scripted", 1, SHORT)).await;
    assert_eq!(leased.expect("claim").len(), 1);
    let app = world
        .service()
        .configure(|config| config.heartbeat = Duration::from_millis(50))
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    world.quiet().await;
    assert_eq!(world.effects("scripted", 1).await, 1);
    sqlx::raw_sql("DELETE FROM wh_service_instances")
        .execute(&world.pool)
        .await
        .expect("delete");
    wait_until("the instance is on the list again", || async {
        world
            .count("SELECT count(*) FROM wh_service_instances")
            .await
            == 1
    })
    .await;
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f059_a_shutdown_renews_the_lease_until_the_handler_ends() {
    let world = World::new().await;
    world.script.steps(1, [Step::Pause(SHORT * 4)]);
    let service = || impatient(&world).register::<outside_after>();
    let one = service().start().await.expect("start");
    let two = service().start().await.expect("start");
    two.pause("outside_after");
    world.feed(&Ping { number: 1 });
    wait_until("it runs", || async { world.script.calls(1) == 1 }).await;
    two.resume("outside_after");
    one.shutdown().await.expect("the handler finished");
    world.quiet().await;
    assert_eq!(world.script.calls(1), 1);
    assert_eq!(world.effects("outside_after", 1).await, 1);
    two.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f061_instances_that_join_while_others_work_enter_no_handler_twice() {
    const COUNT: i64 = 400;
    let world = World::new().await;
    for number in 0..COUNT {
        world
            .script
            .steps(number, [Step::Pause(Duration::from_millis(3))]);
        world.feed(&Ping { number });
    }
    let mut apps = Vec::new();
    for _ in 0..5 {
        let store = PgStore::new(world.pool_of(5).await);
        let app = world.service_on(store).register::<scripted>().start().await;
        apps.push(app.expect("start"));
    }
    world.quiet().await;
    for number in 0..COUNT {
        assert_eq!(world.script.calls(number), 1, "{number}");
    }
    assert_eq!(world.count("SELECT count(*) FROM effects").await, COUNT);
    for app in apps {
        app.shutdown().await.expect("shutdown");
    }
}

#[tokio::test]
async fn f062_an_attempt_that_ends_after_its_message_was_given_up_changes_nothing() {
    let world = World::new().await;
    let store = store_after(&world, world.service().register::<scripted>()).await;
    let message = envelope(Uuid::now_v7(), &Ping { number: 1 });
    store.store_inbox(&[message], None).await.expect("store");
    let late = claim(&store, "scripted", 1).await.remove(0).lease;
    end_leases(&world).await;
    let last = claim(&store, "scripted", 1).await.remove(0).lease;
    let report = |lease, action| Report {
        lease,
        action,
        error: Some("it says so".into()),
    };
    let dead = Action::Dead {
        reason: "failed",
        park: false,
    };
    let retry = Action::Retry(Duration::ZERO);
    // The late one reports before and after the end; neither counts.
    let early = store.report(&[report(late.clone(), retry.clone())]).await;
    assert_eq!(early.expect("report"), [false]);
    let gone = store.report(&[report(last, dead.clone())]).await;
    assert_eq!(gone.expect("report"), [true]);
    for action in [retry, dead, Action::Release] {
        let refused = store.report(&[report(late.clone(), action)]).await;
        assert_eq!(refused.expect("report"), [false]);
    }
    assert_eq!(store.complete_batch(&[late]).await.expect("done"), [false]);
    let letters = store.dead_letters(0, 10).await.expect("list");
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].attempts, 1, "only the report that held counts");
    assert_eq!(world.count("SELECT count(*) FROM wh_inbox").await, 0);
}

#[tokio::test]
async fn f064_what_is_stored_while_a_service_starts_runs_once() {
    let world = World::new().await;
    for number in 0..25 {
        world.feed(&Ping { number });
        let app = world.service().register::<scripted>().start().await;
        let app = app.expect("start");
        world.feed(&Ping {
            number: 100 + number,
        });
        wait_until("both ran", || async {
            world.script.calls(number) >= 1 && world.script.calls(100 + number) >= 1
        })
        .await;
        app.shutdown().await.expect("shutdown");
    }
    let app = world.service().register::<scripted>().start().await;
    let app = app.expect("start");
    world.quiet().await;
    for number in (0..25).chain(100..125) {
        assert_eq!(world.script.calls(number), 1, "{number}");
    }
    assert_eq!(world.count("SELECT count(*) FROM effects").await, 50);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f065_whoever_loses_its_lease_stops_before_it_calls_anybody() {
    let world = World::new().await;
    world.script.steps(1, [Step::Wait]);
    let one = impatient(&world)
        .register::<outside_after>()
        .start()
        .await
        .expect("start");
    world.feed(&Ping { number: 1 });
    world.script.entered().await;
    one.pause("outside_after");
    let two = world
        .service()
        .register::<outside_after>()
        .start()
        .await
        .expect("start");
    // The lease is taken away, again after each renewal; the row is not locked, since the handler
    // has not completed it.
    wait_until("the other one called", || async {
        sqlx::query("UPDATE wh_inbox SET due_at = '-infinity' WHERE instance_id = $1")
            .bind(one.instance_id())
            .execute(&world.pool)
            .await
            .expect("the lease ends");
        world.script.calls_outside() == 1
    })
    .await;
    wait_until("the first one was stopped", || async {
        one.counts().leases_lost == 1
    })
    .await;
    world.script.go();
    world.quiet().await;
    assert_eq!(world.script.calls_outside(), 1);
    assert_eq!(world.effects("outside_after", 1).await, 1);
    one.shutdown().await.expect("shutdown");
    two.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f067_what_was_claimed_and_never_begun_comes_again_and_counts_nothing() {
    let world = World::new().await;
    world.script.steps(0, [Step::Hang, Step::Succeed]);
    let app = impatient(&world)
        .concurrency(1)
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    world.feed(&Ping { number: 0 });
    wait_until("it hangs", || async { world.script.calls(0) == 1 }).await;
    for number in 1..60 {
        world.feed(&Ping { number });
    }
    wait_until("the others are claimed and wait", || async {
        world
            .count("SELECT count(*) FROM wh_inbox WHERE lease_token IS NOT NULL")
            .await
            == 60
    })
    .await;
    drop(app);
    let next = impatient(&world).register::<scripted>().start().await;
    let next = next.expect("start");
    world.quiet().await;
    assert_eq!(world.count("SELECT count(*) FROM effects").await, 60);
    assert_eq!(world.count("SELECT count(*) FROM wh_dead_letters").await, 0);
    for number in 1..60 {
        assert_eq!(world.script.calls(number), 1, "{number} never began before");
    }
    next.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f068_what_one_instance_stores_another_one_runs_at_once() {
    let world = World::new().await;
    let service = || world.service().register::<scripted>();
    let one = service().start().await.expect("start");
    one.pause("scripted");
    let two = world
        .service()
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    let began = std::time::Instant::now();
    for number in 0..20 {
        world.feed(&Ping { number });
    }
    world.quiet().await;
    println!("taken over in {:?}", began.elapsed());
    assert_eq!(world.count("SELECT count(*) FROM effects").await, 20);
    assert_eq!(two.counts().completed, 20);
    one.shutdown().await.expect("shutdown");
    two.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f070_a_copy_that_another_instance_was_given_is_no_second_message() {
    let world = World::new().await;
    world.script.steps(1, [Step::Wait]);
    let (one, two) = (
        whizbang::transport::InProcess::new("one"),
        whizbang::transport::InProcess::new("two"),
    );
    let service = |feed: &whizbang::transport::InProcess| {
        world.service().intake(feed.clone()).register::<scripted>()
    };
    let first = service(&one).start().await.expect("start");
    let second = service(&two).start().await.expect("start");
    let message = super::support::raw(Uuid::now_v7(), &Ping { number: 1 });
    one.deliver(message.clone());
    world.script.entered().await;
    // The broker lost patience and gives a copy to the other instance, which dies with it.
    two.deliver(message);
    wait_until("the copy is settled", || async { two.waiting() == 0 }).await;
    drop(second);
    world.script.go();
    world.quiet().await;
    assert_eq!(world.effects("scripted", 1).await, 1);
    assert_eq!(world.script.calls(1), 1);
    first.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f073_fifty_claims_without_a_run_are_no_attempts() {
    for message in [
        envelope(Uuid::now_v7(), &Ping { number: 1 }),
        envelope(
            Uuid::now_v7(),
            &Stepped {
                stream: "s".into(),
                number: 1,
            },
        ),
    ] {
        let world = World::new().await;
        let service = world
            .service()
            .register::<scripted>()
            .register::<note_stepped>();
        let store = store_after(&world, service).await;
        let handler = match &message.stream {
            Some(_) => "note_stepped",
            None => "scripted",
        };
        store.store_inbox(&[message], None).await.expect("store");
        for _ in 0..50 {
            let work = claim(&store, handler, 1).await.remove(0);
            assert_eq!((work.attempts, work.losses), (0, 0));
            let release = Report {
                lease: work.lease,
                action: Action::Release,
                error: None,
            };
            assert_eq!(store.report(&[release]).await.expect("report"), [true]);
        }
        assert_eq!(world.count("SELECT count(*) FROM wh_inbox").await, 1);
    }
}

#[tokio::test]
async fn f074_restarts_before_a_handler_begins_are_no_attempts() {
    let world = World::new().await;
    let service = || world.service().register::<scripted>();
    for number in 0..10 {
        world.feed(&Ping { number });
    }
    for _ in 0..15 {
        let app = service().start().await.expect("start");
        app.pause("scripted");
        app.shutdown().await.expect("shutdown");
    }
    let counted = world
        .count("SELECT coalesce(sum(attempts + losses), 0)::bigint FROM wh_inbox")
        .await;
    assert_eq!(counted, 0);
    let app = service().start().await.expect("start");
    world.quiet().await;
    assert_eq!(world.count("SELECT count(*) FROM effects").await, 10);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f058_a_worker_past_its_lease_cannot_complete_what_another_one_works_on() {
    for number in [1, 2] {
        let world = World::new().await;
        let service = || {
            world
                .service()
                .register::<scripted>()
                .register::<note_stepped>()
        };
        let effects = async || {
            world.effects("scripted", number).await + world.effects("note_stepped", number).await
        };
        world.script.steps(number, [Step::Wait, Step::Wait]);
        // The late worker looks for work once, and that look is over when it has handled the message
        // that waited for it: it will not take over from itself.
        let store = store_after(&world, service()).await;
        let waiting = envelope(Uuid::now_v7(), &Ping { number: 0 });
        store.store_inbox(&[waiting], None).await.expect("store");
        let late = service()
            .configure(|config| config.idle_poll = Duration::from_secs(3600))
            .start()
            .await
            .expect("start");
        wait_until("it has looked for work", || async {
            late.counts().completed == 1
        })
        .await;
        match number {
            1 => world.feed(&Ping { number }),
            _ => world.feed(&Stepped {
                stream: "s".into(),
                number,
            }),
        };
        world.script.entered().await;
        end_leases(&world).await;
        let owner = service().start().await.expect("start");
        world.script.entered().await;
        // Whoever waits longest goes on first: the one that has lost its lease.
        world.script.go();
        wait_until("it was refused", || async {
            late.counts().leases_lost == 1
        })
        .await;
        assert_eq!(effects().await, 0, "nothing of it is committed");
        world.script.go();
        wait_until("the owner is done", || async {
            owner.counts().completed == 1
        })
        .await;
        world.quiet().await;
        assert_eq!(world.script.calls(number), 2);
        assert_eq!(effects().await, 1);
        late.shutdown().await.expect("shutdown");
        owner.shutdown().await.expect("shutdown");
    }
}

#[tokio::test]
async fn a_row_that_is_stored_while_its_stream_is_being_closed_is_not_forgotten() {
    let world = World::new().await;
    let store = store_after(&world, world.service().register::<note_stepped>()).await;
    let step = |number| {
        let stream = "s".to_owned();
        envelope(Uuid::now_v7(), &Stepped { stream, number })
    };
    store.store_inbox(&[step(1)], None).await.expect("store");
    let held = claim(&store, "note_stepped", 1).await.remove(0).lease;
    let completed = store.complete_batch(std::slice::from_ref(&held)).await;
    assert_eq!(completed.expect("complete"), [true]);
    // The stream is empty and its gate goes, but that is not committed when the next row comes.
    let mut closing = world.pool.begin().await.expect("begin");
    sqlx::query("SELECT close_streams(ARRAY[$1], ARRAY[$2], ARRAY[$3])")
        .bind(&held.lane)
        .bind(held.stream_id)
        .bind(held.token)
        .execute(&mut *closing)
        .await
        .expect("close");
    store.store_inbox(&[step(2)], None).await.expect("store");
    closing.commit().await.expect("commit");
    wait_until("the row is found", || async {
        !claim(&store, "note_stepped", 1).await.is_empty()
    })
    .await;
}

/// The call that leases it is still under way on the server when its answer is given up.
#[tokio::test]
async fn what_a_given_up_store_leases_later_is_found_too() {
    let world = World::new().await;
    let store = PgStore::new(world.pool_of(6).await).answer_within(Duration::from_millis(300));
    let service = world.service_on(store).register::<scripted>();
    // A lease is longer than a test waits.
    let service = service.configure(|config| config.lease = Duration::from_secs(60));
    let app = service.start().await.expect("start");
    let id = Uuid::now_v7();
    let mut other = world.pool.begin().await.expect("begin");
    sqlx::query("INSERT INTO wh_message_deduplication (message_id) VALUES ($1)")
        .bind(id)
        .execute(&mut *other)
        .await
        .expect("insert");
    world.deliver(id, &Ping { number: 1 });
    // Of those that wait then, one at most is still waited for.
    wait_until("many stores wait for the id", || async {
        world
            .count("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
            .await
            >= 6
    })
    .await;
    other.rollback().await.expect("rollback");
    world.quiet().await;
    assert_eq!(world.effects("scripted", 1).await, 1);
    app.shutdown().await.expect("shutdown");
}
