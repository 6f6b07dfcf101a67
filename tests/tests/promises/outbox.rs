//! P4 and P9: a message leaves if, and only if, the transaction commits; and nothing notifies.

use std::time::Duration;

use sqlx::Connection;
use uuid::Uuid;
use whizbang::PublishError;
use whizbang_tests::{Ping, Step, Stepped, World, note_stepped, scripted, wait_until};

#[tokio::test]
async fn a_rolled_back_publish_leaves_nothing_and_a_committed_one_arrives_once() {
    let world = World::new().await;
    let app = world
        .service()
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    let dispatcher = app.dispatcher();
    let mut tx = world.pool.begin().await.expect("begin");
    dispatcher
        .publish(&mut tx, &Ping { number: 1 })
        .await
        .expect("publish");
    tx.rollback().await.expect("roll back");
    let mut tx = world.pool.begin().await.expect("begin");
    let events: Vec<_> = (2..5).map(|number| Ping { number }).collect();
    dispatcher
        .publish_all(&mut tx, &events)
        .await
        .expect("publish");
    tx.commit().await.expect("commit");
    dispatcher
        .transaction(async |tx| {
            dispatcher.publish(tx, &Ping { number: 5 }).await?;
            anyhow::Ok(())
        })
        .await
        .expect("transaction");
    wait_until("four effects", || async {
        world.count("SELECT count(*) FROM effects").await == 4
    })
    .await;
    world.quiet().await;
    assert_eq!(world.effects("scripted", 1).await, 0);
    assert_eq!(world.count("SELECT count(*) FROM effects").await, 4);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn a_failed_closure_and_a_swallowed_error_roll_everything_back() {
    let world = World::new().await;
    let app = world
        .service()
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    let dispatcher = app.dispatcher();
    let failed = dispatcher
        .transaction(async |tx| {
            dispatcher.publish(tx, &Ping { number: 1 }).await?;
            anyhow::bail!("no")
        })
        .await;
    let failed: anyhow::Result<()> = failed;
    assert!(failed.is_err());
    let swallowed: anyhow::Result<()> = dispatcher
        .transaction(async |tx| {
            dispatcher.publish(tx, &Ping { number: 2 }).await?;
            let wrong = sqlx::query("SELECT 1 / 0").execute(&mut **tx).await;
            assert!(wrong.is_err());
            Ok(())
        })
        .await;
    assert!(
        swallowed.is_err(),
        "COMMIT of an aborted transaction must not pass for one"
    );
    assert_eq!(world.count("SELECT count(*) FROM wh_outbox").await, 0);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn publish_on_wants_an_open_transaction() {
    let world = World::new().await;
    let app = world
        .service()
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    let dispatcher = app.dispatcher();
    let mut connection = world.pool.acquire().await.expect("a connection");
    let alone = dispatcher
        .publish_on(&mut connection, &Ping { number: 1 })
        .await;
    assert!(
        matches!(alone, Err(PublishError::NoTransaction)),
        "{alone:?}"
    );
    sqlx::raw_sql("BEGIN")
        .execute(&mut *connection)
        .await
        .expect("begin");
    dispatcher
        .publish_on(&mut connection, &Ping { number: 2 })
        .await
        .expect("inside a plain BEGIN");
    sqlx::raw_sql("COMMIT")
        .execute(&mut *connection)
        .await
        .expect("commit");
    let mut tx = connection.begin().await.expect("begin");
    dispatcher
        .publish_on(&mut tx, &Ping { number: 3 })
        .await
        .expect("inside a transaction");
    tx.commit().await.expect("commit");
    drop(connection);
    wait_until("two effects", || async {
        world.count("SELECT count(*) FROM effects").await == 2
    })
    .await;
    assert_eq!(world.effects("scripted", 1).await, 0);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn scheduled_messages_wait_can_be_cancelled_and_keep_their_id() {
    let world = World::new().await;
    let app = world
        .service()
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    let dispatcher = app.dispatcher();
    let id = Uuid::now_v7();
    let mut tx = world.pool.begin().await.expect("begin");
    let far = dispatcher
        .publish(&mut tx, &Ping { number: 1 })
        .after(Duration::from_secs(3600))
        .await
        .expect("publish");
    dispatcher
        .publish(&mut tx, &Ping { number: 2 })
        .after(Duration::from_millis(300))
        .id(id)
        .await
        .expect("publish");
    tx.commit().await.expect("commit");
    let due: bool =
        sqlx::query_scalar("SELECT scheduled_at > now() FROM wh_outbox WHERE message_id = $1")
            .bind(far)
            .fetch_one(&world.pool)
            .await
            .expect("the row");
    assert!(due);
    assert!(dispatcher.cancel(far).await.expect("cancel"));
    assert!(!dispatcher.cancel(far).await.expect("cancel again"));
    wait_until("the near one ran", || async {
        world.effects("scripted", 2).await == 1
    })
    .await;
    world.quiet().await;
    assert_eq!(world.effects("scripted", 1).await, 0);
    assert!(!dispatcher.cancel(id).await.expect("too late"));
    app.shutdown().await.expect("shutdown");
}

/// A listener that reads nothing keeps every notification of the database in the queue, whatever its
/// channel: their pages can be counted.
#[tokio::test]
async fn nobody_notifies_in_the_users_transaction() {
    const USAGE: &str = "SELECT (pg_notification_queue_usage() * 1e9)::bigint";
    let world = World::new().await;
    let app = world.service().register::<scripted>().start().await;
    let app = app.expect("start");
    let dispatcher = app.dispatcher();
    let mut listener = world.pool.acquire().await.expect("a connection");
    for statement in ["LISTEN nothing", "BEGIN", "SELECT 1"] {
        sqlx::query(statement)
            .execute(&mut *listener)
            .await
            .expect(statement);
    }
    let before = world.count(USAGE).await;
    // A notification takes at least 16 bytes of a page of 8 KiB.
    for number in 0..600 {
        let mut tx = world.pool.begin().await.expect("begin");
        let ping = Ping { number };
        dispatcher.publish(&mut tx, &ping).await.expect("publish");
        tx.commit().await.expect("commit");
    }
    world.quiet().await;
    assert_eq!(world.count(USAGE).await, before, "nothing was notified");
    for letter in ["a", "b", "c"] {
        let text = letter.repeat(7_000);
        sqlx::query("SELECT pg_notify('nothing', $1)")
            .bind(text)
            .execute(&world.pool)
            .await
            .expect("notify");
    }
    assert!(world.count(USAGE).await > before, "it would be seen");
    drop(listener);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn what_a_handler_published_keeps_correlation_and_causation() {
    let world = World::new().await;
    world.script.steps(7, [Step::Fail]);
    let app = world
        .service()
        .register::<note_stepped>()
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    app.pause("note_stepped");
    let dispatcher = app.dispatcher();
    let correlation = Uuid::now_v7();
    let mut tx = world.pool.begin().await.expect("begin");
    let id = dispatcher
        .publish(
            &mut tx,
            &Stepped {
                stream: "s".into(),
                number: 1,
            },
        )
        .correlation(correlation)
        .header("tenant", "acme")
        .await
        .expect("publish");
    tx.commit().await.expect("commit");
    wait_until("the row is in the inbox", || async {
        world.count("SELECT count(*) FROM wh_inbox").await == 1
    })
    .await;
    let (found, metadata): (Uuid, String) =
        sqlx::query_as("SELECT correlation_id, metadata::text FROM wh_inbox WHERE message_id = $1")
            .bind(id)
            .fetch_one(&world.pool)
            .await
            .expect("the row");
    assert_eq!(found, correlation);
    assert!(metadata.contains("acme"), "{metadata}");
    app.resume("note_stepped");
    world.quiet().await;
    app.shutdown().await.expect("shutdown");
}
