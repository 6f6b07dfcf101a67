//! Gates and fences: staged interleavings of stores, completions, renewals and zombies.

use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    claiming::{stream_of, with_h},
    support::{
        EXPIRE, Meanwhile, Message, Offer, Outcome, Work, begin, claim_h, close, complete,
        complete_here, exec, ids, interval, next, put, report, store,
    },
};

#[tokio::test]
async fn a_row_stored_while_its_gate_closes_is_not_lost() -> Outcome {
    let (db, mut worker) = with_h().await?;
    let mut consumer = db.connect().await?;
    let (stream, rows) = stream_of(1);
    put(&mut worker, &rows).await?;
    let work = claim_h(&mut worker).await?.remove(0);
    begin(&mut worker, &work).await?;
    assert_eq!(complete_here(&mut worker, &work, true).await?, "done");
    // The gate is locked for closing now: the store must neither wait nor trust it.
    let late = Message::of(stream);
    put(&mut consumer, std::slice::from_ref(&late)).await?;
    exec(&mut worker, "COMMIT").await?;
    assert_eq!(ids(&claim_h(&mut consumer).await?), [late.id]);
    Ok(())
}

#[tokio::test]
async fn a_gate_that_a_store_holds_is_not_closed() -> Outcome {
    let (db, mut worker) = with_h().await?;
    let mut consumer = db.connect().await?;
    let (stream, rows) = stream_of(1);
    put(&mut worker, &rows).await?;
    let work = claim_h(&mut worker).await?.remove(0);
    let late = Message::of(stream);
    exec(&mut consumer, "BEGIN").await?;
    put(&mut consumer, std::slice::from_ref(&late)).await?;
    assert_eq!(complete(&mut worker, &work, true).await?, "more");
    assert_eq!(next(&mut worker, &work, &["h"]).await?.len(), 0);
    exec(&mut consumer, "COMMIT").await?;
    assert_eq!(ids(&claim_h(&mut worker).await?), [late.id]);
    Ok(())
}

#[tokio::test]
async fn an_old_token_changes_nothing() -> Outcome {
    let (db, mut connection) = with_h().await?;
    let (_, rows) = stream_of(2);
    put(&mut connection, &rows).await?;
    put(&mut connection, &[Message::new()]).await?;
    let old = claim_h(&mut connection).await?;
    assert_eq!(old.len(), 3);
    db.run(EXPIRE).await?;
    let new = claim_h(&mut connection).await?;
    assert_eq!(new.len(), 3);
    let picture = "SELECT md5(string_agg(i::text, '|' ORDER BY sequence) || (SELECT string_agg(g::text, '|') FROM wh_inbox_streams g)) FROM wh_inbox i";
    let before: String = db.value(picture).await?;
    for work in &old {
        assert_eq!(complete(&mut connection, work, true).await?, "lost");
        for action in ["retry", "snooze", "release", "dead"] {
            assert_eq!(report(&mut connection, work, action, 1.0).await?, "lost");
        }
        if work.stream.is_some() {
            close(&mut connection, work).await?;
            assert_eq!(next(&mut connection, work, &["h"]).await?.len(), 0);
        }
        let started: bool = sqlx::query_scalar("SELECT mark_started($1, $2, $3, $4, $5)")
            .bind(work.id)
            .bind(&work.handler)
            .bind(&work.lane)
            .bind(work.stream)
            .bind(work.token)
            .fetch_one(&mut connection)
            .await?;
        assert!(!started);
    }
    assert_eq!(
        complete_batch(&mut connection, &old).await?,
        [false, false, false]
    );
    assert_eq!(renew(&mut connection, &old).await?, 0);
    assert_eq!(db.value::<String>(picture).await?, before);
    assert_eq!(
        renew(&mut connection, &new).await?,
        2,
        "one row and one gate"
    );
    assert_eq!(
        complete_batch(&mut connection, &new).await?,
        [true, true, true]
    );
    assert_eq!(db.value::<i64>("SELECT count(*) FROM wh_inbox").await?, 0);
    Ok(())
}

async fn complete_batch(
    connection: &mut PgConnection,
    works: &[Work],
) -> anyhow::Result<Vec<bool>> {
    Ok(
        sqlx::query_scalar("SELECT completed FROM complete_inbox_messages($1, $2, $3, $4, $5)")
            .bind(ids(works))
            .bind(
                works
                    .iter()
                    .map(|work| work.handler.clone())
                    .collect::<Vec<_>>(),
            )
            .bind(
                works
                    .iter()
                    .map(|work| work.lane.clone())
                    .collect::<Vec<_>>(),
            )
            .bind(works.iter().map(|work| work.stream).collect::<Vec<_>>())
            .bind(works.iter().map(|work| work.token).collect::<Vec<_>>())
            .fetch_all(connection)
            .await?,
    )
}

async fn renew(connection: &mut PgConnection, works: &[Work]) -> anyhow::Result<usize> {
    let rows: Vec<_> = works.iter().filter(|work| work.stream.is_none()).collect();
    let mut gates: Vec<_> = works.iter().filter(|work| work.stream.is_some()).collect();
    gates.dedup_by_key(|work| work.stream);
    let held = sqlx::query("SELECT * FROM renew_leases($1, $2, $3, $4, $5, $6, $7)")
        .bind(rows.iter().map(|work| work.id).collect::<Vec<_>>())
        .bind(
            rows.iter()
                .map(|work| work.handler.clone())
                .collect::<Vec<_>>(),
        )
        .bind(rows.iter().map(|work| work.token).collect::<Vec<_>>())
        .bind(
            gates
                .iter()
                .map(|work| work.lane.clone())
                .collect::<Vec<_>>(),
        )
        .bind(gates.iter().map(|work| work.stream).collect::<Vec<_>>())
        .bind(gates.iter().map(|work| work.token).collect::<Vec<_>>())
        .bind(interval(60.0))
        .fetch_all(connection)
        .await?;
    Ok(held.len())
}

#[tokio::test]
async fn renewal_skips_what_is_being_completed_and_calls_it_held() -> Outcome {
    let (db, mut worker) = with_h().await?;
    let mut renewer = db.connect().await?;
    let (_, rows) = stream_of(1);
    put(&mut worker, &rows).await?;
    put(&mut worker, &[Message::new()]).await?;
    let works = claim_h(&mut worker).await?;
    for work in &works {
        begin(&mut worker, work).await?;
        assert_eq!(complete_here(&mut worker, work, true).await?, "done");
        assert_eq!(renew(&mut renewer, &works).await?, 2);
        exec(&mut worker, "ROLLBACK").await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_handler_that_ended_its_transaction_does_not_complete() -> Outcome {
    let (db, mut connection) = with_h().await?;
    put(&mut connection, &[Message::new()]).await?;
    let work = claim_h(&mut connection).await?.remove(0);
    begin(&mut connection, &work).await?;
    exec(&mut connection, "COMMIT; BEGIN").await?;
    assert_eq!(
        complete_here(&mut connection, &work, true).await?,
        "unfenced"
    );
    exec(&mut connection, "COMMIT").await?;
    assert_eq!(db.value::<i64>("SELECT count(*) FROM wh_inbox").await?, 1);
    Ok(())
}

#[tokio::test]
async fn a_lower_sequence_that_commits_late_waits_for_the_running_one() -> Outcome {
    let (db, mut early) = with_h().await?;
    let mut connection = db.connect().await?;
    let (stream, _) = stream_of(0);
    let (low, high) = (Message::of(stream), Message::of(stream));
    // A gate stands, so that both stores are free to go on side by side.
    put(&mut connection, &[Message::of(stream)]).await?;
    let running = claim_h(&mut connection).await?.remove(0);
    exec(&mut early, "BEGIN").await?;
    put(&mut early, std::slice::from_ref(&low)).await?;
    put(&mut connection, std::slice::from_ref(&high)).await?;
    assert_eq!(complete(&mut connection, &running, true).await?, "more");
    let head = next(&mut connection, &running, &["h"]).await?.remove(0);
    assert_eq!(head.id, high.id);
    exec(&mut early, "COMMIT").await?;
    assert_eq!(claim_h(&mut early).await?.len(), 0, "the stream is at work");
    assert_eq!(complete(&mut connection, &head, true).await?, "more");
    assert_eq!(ids(&next(&mut connection, &head, &["h"]).await?), [low.id]);
    Ok(())
}

#[tokio::test]
async fn two_stores_open_one_gate_and_both_rows_are_found() -> Outcome {
    let (db, mut one) = with_h().await?;
    let (stream, rows) = stream_of(2);
    exec(&mut one, "BEGIN").await?;
    put(&mut one, &rows[..1]).await?;
    let second = rows[1].clone();
    let two = Meanwhile::start(db.connect().await?, |mut connection| async move {
        let offer = Offer {
            token: Uuid::now_v7(),
            room: &[("h", 5)],
        };
        Ok(store(&mut connection, &[second], Some(&offer)).await?[0].leased)
    })
    .await?;
    db.until_blocked(two.pid).await?;
    exec(&mut one, "COMMIT").await?;
    assert!(!two.end().await?, "an earlier row waits");
    let gates: i64 = db.value("SELECT count(*) FROM wh_inbox_streams").await?;
    assert_eq!(gates, 1);
    let mut found = Vec::new();
    while found.len() < 2 {
        for work in claim_h(&mut one).await? {
            assert_eq!(work.stream, Some(stream));
            complete(&mut one, &work, false).await?;
            found.push(work.id);
            close(&mut one, &work).await?;
        }
    }
    assert_eq!(found, rows.iter().map(|one| one.id).collect::<Vec<_>>());
    Ok(())
}

#[tokio::test]
async fn a_handler_at_another_isolation_level_leaves_the_gate() -> Outcome {
    let (db, mut connection) = with_h().await?;
    let (stream, rows) = stream_of(1);
    put(&mut connection, &rows).await?;
    let work = claim_h(&mut connection).await?.remove(0);
    exec(
        &mut connection,
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1",
    )
    .await?;
    sqlx::query("SELECT set_config('whizbang.fence', $1, true)")
        .bind(work.token.to_string())
        .execute(&mut connection)
        .await?;
    let mut consumer = db.connect().await?;
    let late = Message::of(stream);
    put(&mut consumer, std::slice::from_ref(&late)).await?;
    assert_eq!(complete_here(&mut connection, &work, true).await?, "more");
    exec(&mut connection, "COMMIT").await?;
    assert_eq!(ids(&next(&mut connection, &work, &["h"]).await?), [late.id]);
    Ok(())
}
