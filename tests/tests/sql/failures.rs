//! Retries, snoozes, dead letters, losses, and what they do to a stream.

use sqlx::PgConnection;
use uuid::Uuid;

use crate::support::{
    Db, EXPIRE, Message, Outcome, Work, claim_h, complete, ids, put, report, report_parking,
};

async fn with_h() -> anyhow::Result<(Db, PgConnection)> {
    let db = Db::new().await?;
    db.subscribe("h", "l").await?;
    let connection = db.connect().await?;
    Ok((db, connection))
}

#[tokio::test]
async fn a_retry_holds_its_own_stream_only_and_keeps_its_place() -> Outcome {
    let (db, mut connection) = with_h().await?;
    let (bad, good) = (Uuid::now_v7(), Uuid::now_v7());
    let failing = [Message::of(bad), Message::of(bad)];
    put(&mut connection, &failing).await?;
    let head = claim_h(&mut connection).await?.remove(0);
    assert_eq!(
        report(&mut connection, &head, "retry", 60.0).await?,
        "retry"
    );
    let more = [Message::of(good), Message::of(bad), Message::of(good)];
    put(&mut connection, &more).await?;
    assert_eq!(
        ids(&claim_h(&mut connection).await?),
        [more[0].id, more[2].id]
    );
    db.run("UPDATE wh_inbox_streams SET due_at = clock_timestamp() WHERE lease_token IS NULL")
        .await?;
    let again = claim_h(&mut connection).await?;
    assert_eq!(ids(&again), [failing[0].id, failing[1].id, more[1].id]);
    assert_eq!(
        again.iter().map(|work| work.attempts).collect::<Vec<_>>(),
        [1, 0, 0]
    );
    let error: String = db
        .value("SELECT error FROM wh_inbox WHERE error IS NOT NULL")
        .await?;
    assert_eq!(error, "it broke");
    Ok(())
}

#[tokio::test]
async fn what_counts_as_an_attempt() -> Outcome {
    for stream in [None, Some(Uuid::now_v7())] {
        let (db, mut connection) = with_h().await?;
        put(
            &mut connection,
            &[Message {
                stream,
                ..Message::new()
            }],
        )
        .await?;
        let mut attempts = 0;
        for action in ["release", "snooze", "retry", "release", "retry"] {
            let work = claim_h(&mut connection).await?.remove(0);
            assert_eq!(work.attempts, attempts, "before {action}");
            assert_eq!(report(&mut connection, &work, action, 0.0).await?, action);
            attempts += i32::from(action == "retry");
        }
        let work = claim_h(&mut connection).await?.remove(0);
        assert_eq!(report(&mut connection, &work, "dead", 0.0).await?, "dead");
        assert_eq!(
            db.value::<i32>("SELECT attempts FROM wh_dead_letters")
                .await?,
            3
        );
        assert_eq!(claim_h(&mut connection).await?.len(), 0);
        assert_eq!(
            db.value::<i64>("SELECT count(*) FROM wh_inbox_streams")
                .await?,
            0
        );
    }
    Ok(())
}

async fn mark_started(connection: &mut PgConnection, work: &Work) -> anyhow::Result<bool> {
    Ok(
        sqlx::query_scalar("SELECT mark_started($1, $2, $3, $4, $5)")
            .bind(work.id)
            .bind(&work.handler)
            .bind(&work.lane)
            .bind(work.stream)
            .bind(work.token)
            .fetch_one(connection)
            .await?,
    )
}

#[tokio::test]
async fn a_loss_counts_as_an_attempt_only_when_the_row_ran_alone() -> Outcome {
    for stream in [None, Some(Uuid::now_v7())] {
        let (db, mut connection) = with_h().await?;
        let row = || Message {
            stream,
            ..Message::new()
        };
        put(&mut connection, &[row(), row()]).await?;
        let count = |works: &[Work]| {
            works
                .iter()
                .map(|work| (work.attempts, work.losses))
                .collect::<Vec<_>>()
        };
        assert_eq!(count(&claim_h(&mut connection).await?), [(0, 0), (0, 0)]);
        db.run(EXPIRE).await?;
        let suspects = claim_h(&mut connection).await?;
        // Of a stream only the head can have been at work.
        let second = (0, i32::from(stream.is_none()));
        assert_eq!(count(&suspects), [(0, 1), second]);
        assert!(mark_started(&mut connection, &suspects[0]).await?);
        db.run(EXPIRE).await?;
        let mut again = claim_h(&mut connection).await?;
        again.sort_by_key(|work| work.sequence);
        let second = (0, 2 * i32::from(stream.is_none()));
        assert_eq!(count(&again), [(1, 2), second]);
        assert_eq!(
            report(&mut connection, &again[0], "retry", 0.0).await?,
            "retry"
        );
        let losses = "SELECT losses FROM wh_inbox ORDER BY sequence LIMIT 1";
        assert_eq!(db.value::<i32>(losses).await?, 0, "the process survived");
    }
    Ok(())
}

#[tokio::test]
async fn after_a_dead_letter_the_stream_goes_on() -> Outcome {
    let (_db, mut connection) = with_h().await?;
    let stream = Uuid::now_v7();
    let rows = [Message::of(stream), Message::of(stream)];
    put(&mut connection, &rows).await?;
    let head = claim_h(&mut connection).await?.remove(0);
    assert_eq!(report(&mut connection, &head, "dead", 0.0).await?, "dead");
    let rest = claim_h(&mut connection).await?;
    assert_eq!(ids(&rest), [rows[1].id]);
    assert_eq!(complete(&mut connection, &rest[0], true).await?, "done");
    Ok(())
}

#[tokio::test]
async fn a_parked_stream_stands_still_and_others_go_on() -> Outcome {
    let (db, mut connection) = with_h().await?;
    let stream = Uuid::now_v7();
    put(&mut connection, &[Message::of(stream), Message::of(stream)]).await?;
    let head = claim_h(&mut connection).await?.remove(0);
    assert_eq!(
        report_parking(&mut connection, &head, "dead", 0.0, true).await?,
        "dead"
    );
    let other = Message::of(Uuid::now_v7());
    put(&mut connection, &[Message::of(stream), other.clone()]).await?;
    assert_eq!(ids(&claim_h(&mut connection).await?), [other.id]);
    assert!(
        db.value::<bool>("SELECT parked FROM wh_dead_letters")
            .await?
    );
    Ok(())
}

#[tokio::test]
async fn several_reports_of_a_stream_all_count_and_the_first_decides() -> Outcome {
    let (db, mut connection) = with_h().await?;
    let stream = Uuid::now_v7();
    put(&mut connection, &[Message::of(stream), Message::of(stream)]).await?;
    let works = claim_h(&mut connection).await?;
    let outcomes: Vec<String> = sqlx::query_scalar(
        "SELECT outcome FROM report_failures($1, $2, $3, $4, $5, $6, ARRAY[interval '1 hour', interval '0'], $7, $7, ARRAY[false, false])",
    )
    .bind(ids(&works))
    .bind(vec!["h", "h"])
    .bind(vec!["l", "l"])
    .bind(vec![stream, stream])
    .bind(vec![works[0].token, works[1].token])
    .bind(vec!["retry", "release"])
    .bind(vec![None::<String>, None])
    .fetch_all(&mut connection)
    .await?;
    assert_eq!(outcomes, ["retry", "release"]);
    assert_eq!(
        claim_h(&mut connection).await?.len(),
        0,
        "an hour has not passed"
    );
    let attempts: i64 = db.value("SELECT sum(attempts) FROM wh_inbox").await?;
    assert_eq!(attempts, 1);
    Ok(())
}
