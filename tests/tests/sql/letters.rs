//! The ways back from the dead letters.

use sqlx::PgConnection;
use uuid::Uuid;

use crate::support::{
    Db, Meanwhile, Message, Outcome, claim_h, close, complete, exec, ids, put, report,
    report_parking, store,
};

async fn with_h() -> anyhow::Result<(Db, PgConnection)> {
    let db = Db::new().await?;
    db.subscribe("h", "l").await?;
    let connection = db.connect().await?;
    Ok((db, connection))
}

async fn requeue(connection: &mut PgConnection) -> anyhow::Result<Vec<String>> {
    Ok(sqlx::query_scalar(
        "SELECT outcome FROM requeue_dead_letters(ARRAY(SELECT id FROM wh_dead_letters ORDER BY id))",
    )
    .fetch_all(connection)
    .await?)
}

#[tokio::test]
async fn a_requeued_message_runs_again_at_the_end_of_its_stream_although_its_id_is_known() -> Outcome
{
    let (db, mut connection) = with_h().await?;
    let stream = Uuid::now_v7();
    let rows = [Message::of(stream), Message::of(stream)];
    put(&mut connection, &rows).await?;
    let head = claim_h(&mut connection).await?.remove(0);
    report(&mut connection, &head, "retry", 0.0).await?;
    let head = claim_h(&mut connection).await?.remove(0);
    report(&mut connection, &head, "dead", 0.0).await?;
    assert_eq!(requeue(&mut connection).await?, ["requeued"]);
    assert_eq!(requeue(&mut connection).await?.len(), 0);
    let works = claim_h(&mut connection).await?;
    assert_eq!(ids(&works), [rows[1].id, rows[0].id]);
    assert_eq!(works[1].attempts, 0);
    let stored = store(&mut connection, std::slice::from_ref(&rows[0]), None).await?;
    assert_eq!(stored[0].outcome, "duplicate");
    assert_eq!(
        db.value::<i64>("SELECT count(*) FROM wh_dead_letters")
            .await?,
        0
    );
    Ok(())
}

#[tokio::test]
async fn a_letter_pins_its_id_until_it_is_discarded() -> Outcome {
    let (db, mut connection) = with_h().await?;
    let message = Message {
        id: Uuid::from_u128(90),
        ..Message::new()
    };
    put(&mut connection, &[message]).await?;
    let work = claim_h(&mut connection).await?.remove(0);
    report(&mut connection, &work, "dead", 0.0).await?;
    db.run("UPDATE wh_message_deduplication SET first_seen_at = now() - interval '90 days'")
        .await?;
    let known = "SELECT count(*) FROM wh_message_deduplication";
    for _ in 0..2 {
        db.run("SELECT * FROM perform_maintenance()").await?;
        assert_eq!(db.value::<i64>(known).await?, 1);
    }
    let gone = "SELECT discard_dead_letters(ARRAY(SELECT id FROM wh_dead_letters))";
    assert_eq!(db.value::<i64>(gone).await?, 1);
    db.run("SELECT * FROM perform_maintenance()").await?;
    db.run("SELECT * FROM perform_maintenance()").await?;
    assert_eq!(db.value::<i64>(known).await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_parked_letter_comes_back_to_its_place_or_lets_the_stream_go_on() -> Outcome {
    for requeued in [true, false] {
        let (db, mut connection) = with_h().await?;
        let stream = Uuid::now_v7();
        let rows = [Message::of(stream), Message::of(stream)];
        put(&mut connection, &rows).await?;
        let head = claim_h(&mut connection).await?.remove(0);
        report_parking(&mut connection, &head, "dead", 0.0, true).await?;
        assert_eq!(claim_h(&mut connection).await?.len(), 0);
        let expected = if requeued {
            assert_eq!(requeue(&mut connection).await?, ["requeued"]);
            vec![rows[0].id, rows[1].id]
        } else {
            db.run("SELECT discard_dead_letters(ARRAY(SELECT id FROM wh_dead_letters))")
                .await?;
            vec![rows[1].id]
        };
        let works = claim_h(&mut connection).await?;
        assert_eq!(ids(&works), expected);
        for (place, work) in works.iter().enumerate() {
            complete(&mut connection, work, place + 1 == works.len()).await?;
        }
        assert_eq!(
            db.value::<i64>("SELECT count(*) FROM wh_inbox_streams")
                .await?,
            0
        );
    }
    Ok(())
}

#[tokio::test]
async fn an_unhandled_command_is_given_to_whoever_listens_now() -> Outcome {
    let db = Db::new().await?;
    let mut connection = db.connect().await?;
    let command = Message {
        command: true,
        ..Message::of(Uuid::now_v7())
    };
    store(&mut connection, std::slice::from_ref(&command), None).await?;
    assert_eq!(requeue(&mut connection).await?, ["unhandled"]);
    assert_eq!(
        db.value::<i64>("SELECT count(*) FROM wh_dead_letters")
            .await?,
        1
    );
    db.subscribe("h", "l").await?;
    assert_eq!(requeue(&mut connection).await?, ["requeued"]);
    assert_eq!(ids(&claim_h(&mut connection).await?), [command.id]);
    Ok(())
}

#[tokio::test]
async fn a_letter_of_a_handler_that_is_gone_stays() -> Outcome {
    let (db, mut connection) = with_h().await?;
    put(&mut connection, &[Message::new()]).await?;
    let work = claim_h(&mut connection).await?.remove(0);
    report(&mut connection, &work, "dead", 0.0).await?;
    db.run("DELETE FROM wh_subscriptions").await?;
    assert_eq!(requeue(&mut connection).await?, ["unhandled"]);
    assert_eq!(db.value::<i64>("SELECT count(*) FROM wh_inbox").await?, 0);
    assert_eq!(
        db.value::<i64>("SELECT count(*) FROM wh_dead_letters")
            .await?,
        1
    );
    Ok(())
}

#[tokio::test]
async fn bytes_that_were_no_message_cannot_be_requeued() -> Outcome {
    let db = Db::new().await?;
    let mut connection = db.connect().await?;
    let stored: i64 =
        sqlx::query_scalar("SELECT store_dead_letters('transport', $1, $2, $3, $4, $5, $6)")
            .bind(vec![None, Some(Uuid::now_v7())])
            .bind(vec![None, Some("t")])
            .bind(vec![Some(b"\xff\x00".to_vec()), Some(Vec::new())])
            .bind(vec!["{}", "{}"])
            .bind(vec!["undecodable", "undecodable"])
            .bind(vec![Some("'); DROP TABLE wh_inbox; --"), None])
            .fetch_one(&mut connection)
            .await?;
    assert_eq!(stored, 2);
    assert_eq!(
        requeue(&mut connection).await?,
        ["not_requeueable", "not_requeueable"]
    );
    assert_eq!(
        db.value::<i64>("SELECT count(*) FROM wh_dead_letters")
            .await?,
        2
    );
    Ok(())
}

#[tokio::test]
async fn a_letter_is_requeued_once_whoever_asks() -> Outcome {
    let (db, mut one) = with_h().await?;
    put(&mut one, &[Message::new()]).await?;
    let work = claim_h(&mut one).await?.remove(0);
    report(&mut one, &work, "dead", 0.0).await?;
    let id: i64 = db.value("SELECT id FROM wh_dead_letters").await?;
    exec(&mut one, "BEGIN").await?;
    let ask = |connection| async move {
        let mut connection: PgConnection = connection;
        let outcome: Option<String> =
            sqlx::query_scalar("SELECT outcome FROM requeue_dead_letters(ARRAY[$1])")
                .bind(id)
                .fetch_optional(&mut connection)
                .await?;
        Ok(outcome)
    };
    assert_eq!(requeue(&mut one).await?, ["requeued"]);
    let second = Meanwhile::start(db.connect().await?, ask).await?;
    db.until_blocked(second.pid).await?;
    exec(&mut one, "COMMIT").await?;
    assert_ne!(second.end().await?.as_deref(), Some("requeued"));
    assert_eq!(db.value::<i64>("SELECT count(*) FROM wh_inbox").await?, 1);
    Ok(())
}

#[tokio::test]
async fn a_requeue_beside_a_closing_gate_is_not_lost() -> Outcome {
    let (db, mut worker) = with_h().await?;
    let stream = Uuid::now_v7();
    let rows = [Message::of(stream), Message::of(stream)];
    put(&mut worker, &rows).await?;
    let head = claim_h(&mut worker).await?.remove(0);
    report(&mut worker, &head, "dead", 0.0).await?;
    let rest = claim_h(&mut worker).await?.remove(0);
    crate::support::begin(&mut worker, &rest).await?;
    assert_eq!(
        crate::support::complete_here(&mut worker, &rest, true).await?,
        "done"
    );
    let asked = Meanwhile::start(db.connect().await?, |mut connection| async move {
        requeue(&mut connection).await
    })
    .await?;
    crate::support::until("the requeue waits or is through", || async {
        db.until_blocked(asked.pid).await.is_ok()
    })
    .await?;
    exec(&mut worker, "COMMIT").await?;
    assert_eq!(asked.end().await?, ["requeued"]);
    let again = claim_h(&mut worker).await?;
    assert_eq!(ids(&again), [rows[0].id]);
    close(&mut worker, &again[0]).await
}
