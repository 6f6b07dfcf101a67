//! Each id once: in a batch, across batches, at once, after a purge; and what is handed over.

use chrono::{Duration, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::support::{Db, Meanwhile, Message, Outcome, Stored, exec, put, store};

fn outcomes(stored: &[Stored]) -> Vec<&str> {
    stored.iter().map(|one| one.outcome.as_str()).collect()
}

#[tokio::test]
async fn a_batch_stores_each_id_once_and_the_first_wins() -> Outcome {
    let db = Db::new().await?;
    db.subscribe("h", "l").await?;
    let mut connection = db.connect().await?;
    let first = Message::new();
    let again = first.clone();
    let other = Message {
        data: "{\"b\":2}".to_owned(),
        fingerprint: Some(2),
        ..first.clone()
    };
    let stored = store(&mut connection, &[first.clone(), again, other], None).await?;
    assert_eq!(outcomes(&stored), ["stored", "duplicate", "conflict"]);
    assert!(stored[0].was_newly_created && !stored[1].was_newly_created);
    let data: String = db.value("SELECT event_data::text FROM wh_inbox").await?;
    assert_eq!(data, first.data);
    assert_eq!(
        db.value::<i64>("SELECT count(*) FROM wh_message_deduplication")
            .await?,
        1
    );
    Ok(())
}

#[tokio::test]
async fn a_later_batch_finds_duplicates_also_after_completion() -> Outcome {
    let db = Db::new().await?;
    db.subscribe("h", "l").await?;
    let mut connection = db.connect().await?;
    let message = Message::new();
    put(&mut connection, std::slice::from_ref(&message)).await?;
    db.run("DELETE FROM wh_inbox").await?;
    let stored = store(&mut connection, &[message.clone(), Message::new()], None).await?;
    let of = |id: Uuid| stored.iter().filter(move |one| one.message_id == id);
    assert_eq!(
        of(message.id)
            .map(|one| one.outcome.as_str())
            .collect::<Vec<_>>(),
        ["duplicate"]
    );
    assert_eq!(db.value::<i64>("SELECT count(*) FROM wh_inbox").await?, 1);
    Ok(())
}

#[tokio::test]
async fn an_event_nobody_wants_leaves_no_trace_and_a_command_is_reported_once() -> Outcome {
    let db = Db::new().await?;
    let mut connection = db.connect().await?;
    let event = Message::new();
    let command = Message {
        command: true,
        ..Message::new()
    };
    for round in 0..2 {
        let stored = store(&mut connection, &[event.clone(), command.clone()], None).await?;
        let of = |id: Uuid| {
            stored
                .iter()
                .filter(move |one| one.message_id == id)
                .map(|one| one.outcome.clone())
        };
        assert_eq!(of(event.id).collect::<Vec<_>>(), ["dropped"]);
        let expected = if round == 0 { "unhandled" } else { "duplicate" };
        assert_eq!(of(command.id).collect::<Vec<_>>(), [expected]);
    }
    let letters = "SELECT count(*) FROM wh_dead_letters WHERE reason = 'unhandled'";
    assert_eq!(db.value::<i64>(letters).await?, 1);
    assert_eq!(
        db.value::<i64>("SELECT count(*) FROM wh_message_deduplication")
            .await?,
        1
    );
    db.subscribe("h", "l").await?;
    let stored = store(&mut connection, &[event], None).await?;
    assert_eq!(
        outcomes(&stored),
        ["stored"],
        "the event was never remembered"
    );
    Ok(())
}

async fn store_alone(mut connection: PgConnection, message: Message) -> anyhow::Result<String> {
    let stored = store(&mut connection, &[message], None).await?;
    Ok(stored[0].outcome.clone())
}

#[tokio::test]
async fn a_concurrent_store_waits_and_takes_over_when_the_first_rolls_back() -> Outcome {
    for (end, expected, rows) in [("COMMIT", "duplicate", 1_i64), ("ROLLBACK", "stored", 1)] {
        let db = Db::new().await?;
        db.subscribe("h", "l").await?;
        let mut first = db.connect().await?;
        let message = Message::new();
        exec(&mut first, "BEGIN").await?;
        put(&mut first, std::slice::from_ref(&message)).await?;
        let second = Meanwhile::start(db.connect().await?, |connection| {
            store_alone(connection, message.clone())
        })
        .await?;
        db.until_blocked(second.pid).await?;
        exec(&mut first, end).await?;
        assert_eq!(second.end().await?, expected);
        assert_eq!(
            db.value::<i64>("SELECT count(*) FROM wh_inbox").await?,
            rows
        );
    }
    Ok(())
}

#[tokio::test]
async fn batches_in_opposite_orders_do_not_deadlock() -> Outcome {
    let db = Db::new().await?;
    db.subscribe("h", "l").await?;
    db.subscribe("g", "m").await?;
    for _ in 0..10 {
        let stream = Uuid::now_v7();
        let forward: Vec<_> = (0..60)
            .map(|n| {
                if n % 2 == 0 {
                    Message::new()
                } else {
                    Message::of(stream)
                }
            })
            .collect();
        let backward: Vec<_> = forward.iter().rev().cloned().collect();
        let mut running = Vec::new();
        for batch in [forward.clone(), backward, forward] {
            let start = |mut connection: PgConnection| async move {
                let stored = store(&mut connection, &batch, None).await?;
                Ok(stored.iter().filter(|one| one.was_newly_created).count())
            };
            running.push(Meanwhile::start(db.connect().await?, start).await?);
        }
        let mut new = 0;
        for one in running {
            new += one.end().await?;
        }
        assert_eq!(new, 120, "each message once for each of two handlers");
    }
    Ok(())
}

/// One id that was received 40 days ago and completed.
const LONG_AGO: &str = "UPDATE wh_message_deduplication SET first_seen_at = now() - interval '40 days'; DELETE FROM wh_inbox";

#[tokio::test]
async fn an_id_that_was_purged_is_too_old_and_never_new() -> Outcome {
    let db = Db::new().await?;
    db.subscribe("h", "l").await?;
    let mut connection = db.connect().await?;
    let message = Message {
        // Of no version that holds a time: what counts is `born_at`.
        id: Uuid::from_u128(40),
        born_at: Some(Utc::now() - Duration::days(40)),
        ..Message::new()
    };
    put(&mut connection, std::slice::from_ref(&message)).await?;
    db.run(LONG_AGO).await?;
    db.run("SELECT * FROM perform_maintenance()").await?;
    assert_eq!(
        db.value::<i64>("SELECT count(*) FROM wh_message_deduplication")
            .await?,
        0
    );
    for expected in ["too_old", "duplicate"] {
        let stored = store(&mut connection, std::slice::from_ref(&message), None).await?;
        assert_eq!(outcomes(&stored), [expected]);
    }
    let letters =
        "SELECT count(*) FROM wh_dead_letters WHERE reason = 'too_old' AND event_data IS NOT NULL";
    assert_eq!(db.value::<i64>(letters).await?, 1);
    assert_eq!(db.value::<i64>("SELECT count(*) FROM wh_inbox").await?, 0);
    let unknown_age = Message::new();
    put(&mut connection, &[unknown_age]).await
}

#[tokio::test]
async fn a_store_that_meets_a_purge_half_way_sees_its_horizon() -> Outcome {
    let db = Db::new().await?;
    db.subscribe("h", "l").await?;
    let mut purge = db.connect().await?;
    let message = Message {
        // Of no version that holds a time: what counts is `born_at`.
        id: Uuid::from_u128(40),
        born_at: Some(Utc::now() - Duration::days(40)),
        ..Message::new()
    };
    put(&mut purge, std::slice::from_ref(&message)).await?;
    db.run(LONG_AGO).await?;
    exec(&mut purge, "BEGIN; SELECT * FROM perform_maintenance()").await?;
    let storing = Meanwhile::start(db.connect().await?, |connection| {
        store_alone(connection, message.clone())
    })
    .await?;
    db.until_blocked(storing.pid).await?;
    exec(&mut purge, "COMMIT").await?;
    assert_eq!(storing.end().await?, "too_old");
    assert_eq!(db.value::<i64>("SELECT count(*) FROM wh_inbox").await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_purge_that_meets_a_store_half_way_leaves_its_id() -> Outcome {
    let db = Db::new().await?;
    db.subscribe("h", "l").await?;
    let mut storing = db.connect().await?;
    let message = Message::new();
    exec(&mut storing, "BEGIN").await?;
    put(&mut storing, std::slice::from_ref(&message)).await?;
    db.run("SELECT * FROM perform_maintenance()").await?;
    exec(&mut storing, "COMMIT").await?;
    db.run("SELECT * FROM perform_maintenance()").await?;
    let stored = store(&mut storing, &[message], None).await?;
    assert_eq!(outcomes(&stored), ["duplicate"]);
    Ok(())
}
