//! The outbox: written in the user's transaction, relayed in order, delivered locally once.

use sqlx::PgConnection;
use uuid::Uuid;

use crate::support::{Db, Meanwhile, Outcome, exec, interval};

/// When a row may leave, in seconds from now.
pub(crate) type Delay = Option<f64>;

pub(crate) async fn publish_to(
    connection: &mut PgConnection,
    destination: &str,
    rows: &[(Uuid, Option<Uuid>, Delay)],
) -> anyhow::Result<usize> {
    let nothing: Vec<Option<Uuid>> = vec![None; rows.len()];
    let answers: Vec<(Uuid, bool)> = sqlx::query_as(
        "SELECT message_id, was_newly_created FROM store_outbox_messages($1, $2, $3, $4, $5, $5, $6, $7, $7, $8, $9)",
    )
    .bind(rows.iter().map(|row| row.0).collect::<Vec<_>>())
    .bind(vec![destination; rows.len()])
    .bind(vec!["t"; rows.len()])
    .bind(vec![false; rows.len()])
    .bind(vec!["{}"; rows.len()])
    .bind(rows.iter().map(|row| row.1).collect::<Vec<_>>())
    .bind(nothing)
    .bind(vec![None::<chrono::DateTime<chrono::Utc>>; rows.len()])
    .bind(rows.iter().map(|row| row.2.map(interval)).collect::<Vec<_>>())
    .fetch_all(connection)
    .await?;
    Ok(answers.iter().filter(|answer| answer.1).count())
}

async fn publish(connection: &mut PgConnection, rows: &[(Uuid, Option<Uuid>)]) -> Outcome {
    let rows: Vec<_> = rows.iter().map(|row| (row.0, row.1, None)).collect();
    anyhow::ensure!(publish_to(connection, "d", &rows).await? == rows.len());
    Ok(())
}

pub(crate) fn ids_of(length: usize) -> Vec<Uuid> {
    (0..length).map(|_| Uuid::now_v7()).collect()
}

fn in_stream(ids: &[Uuid], stream: Uuid) -> Vec<(Uuid, Option<Uuid>)> {
    ids.iter().map(|id| (*id, Some(stream))).collect()
}

async fn relay_as(
    connection: &mut PgConnection,
    token: Uuid,
    limit: i32,
    lease: f64,
) -> anyhow::Result<Vec<Uuid>> {
    Ok(
        sqlx::query_scalar("SELECT message_id FROM claim_outbox('d', $1, $2, $3, $4)")
            .bind(limit)
            .bind(interval(lease))
            .bind(token)
            .bind(Uuid::nil())
            .fetch_all(connection)
            .await?,
    )
}

/// The one relay of most tests.
pub(crate) async fn relay(connection: &mut PgConnection, limit: i32) -> anyhow::Result<Vec<Uuid>> {
    relay_as(connection, Uuid::nil(), limit, 60.0).await
}

pub(crate) async fn acknowledge(
    connection: &mut PgConnection,
    ids: &[Uuid],
) -> anyhow::Result<i64> {
    Ok(
        sqlx::query_scalar("SELECT complete_outbox_published($1, 'd', $2)")
            .bind(ids)
            .bind(Uuid::nil())
            .fetch_one(connection)
            .await?,
    )
}

async fn refuse(
    connection: &mut PgConnection,
    refused: &[(Uuid, &str, f64)],
) -> anyhow::Result<Vec<String>> {
    Ok(
        sqlx::query_scalar("SELECT outcome FROM report_outbox_failures($1, 'd', $2, $3, $4, $5)")
            .bind(refused.iter().map(|one| one.0).collect::<Vec<_>>())
            .bind(refused.iter().map(|one| one.1).collect::<Vec<_>>())
            .bind(
                refused
                    .iter()
                    .map(|one| interval(one.2))
                    .collect::<Vec<_>>(),
            )
            .bind(vec!["no"; refused.len()])
            .bind(Uuid::nil())
            .fetch_all(connection)
            .await?,
    )
}

/// Lets finite waiting times pass.
pub(crate) const PASS: &str = "UPDATE wh_outbox SET retry_at = clock_timestamp() - interval '1 second' * (1e9 - sequence) WHERE retry_at < 'infinity'; UPDATE wh_outbox SET scheduled_at = scheduled_at - interval '1 day' WHERE scheduled_at IS NOT NULL";

#[tokio::test]
async fn an_id_is_written_once_for_each_destination() -> Outcome {
    let db = Db::new().await?;
    let mut connection = db.connect().await?;
    let id = Uuid::now_v7();
    assert_eq!(
        publish_to(&mut connection, "d", &[(id, None, None)]).await?,
        1
    );
    assert_eq!(
        publish_to(&mut connection, "d", &[(id, None, None)]).await?,
        0
    );
    assert_eq!(
        publish_to(&mut connection, "e", &[(id, None, None)]).await?,
        1
    );
    assert_eq!(relay(&mut connection, 10).await?, [id]);
    assert_eq!(
        acknowledge(&mut connection, &[id, Uuid::now_v7()]).await?,
        1
    );
    assert_eq!(acknowledge(&mut connection, &[id]).await?, 0);
    assert_eq!(acknowledge(&mut connection, &[]).await?, 0);
    let everywhere: i64 = sqlx::query_scalar("SELECT complete_outbox_published($1)")
        .bind(vec![id])
        .fetch_one(&mut connection)
        .await?;
    assert_eq!(everywhere, 1);
    assert_eq!(db.value::<i64>("SELECT count(*) FROM wh_outbox").await?, 0);
    Ok(())
}

#[tokio::test]
async fn one_relay_at_a_time_and_the_next_one_takes_over_when_the_lease_ends() -> Outcome {
    let db = Db::new().await?;
    let mut connection = db.connect().await?;
    let ids = ids_of(1);
    publish(&mut connection, &[(ids[0], None)]).await?;
    let (one, two) = (Uuid::now_v7(), Uuid::now_v7());
    assert_eq!(relay_as(&mut connection, one, 10, 60.0).await?, ids);
    assert_eq!(relay_as(&mut connection, two, 10, 60.0).await?.len(), 0);
    assert_eq!(relay_as(&mut connection, one, 10, 0.0).await?, ids);
    assert_eq!(relay_as(&mut connection, two, 10, 60.0).await?, ids);
    let sent = "SELECT count(*) FROM wh_outbox WHERE sent_at <= created_at + interval '1 minute'";
    assert_eq!(db.value::<i64>(sent).await?, 1);
    Ok(())
}

#[tokio::test]
async fn a_refused_row_holds_its_stream_and_no_other() -> Outcome {
    let db = Db::new().await?;
    let mut connection = db.connect().await?;
    let (stream, other) = (Uuid::now_v7(), Uuid::now_v7());
    let rows = ids_of(4);
    publish(&mut connection, &in_stream(&rows[..3], stream)).await?;
    publish(&mut connection, &in_stream(&rows[3..], other)).await?;
    assert_eq!(relay(&mut connection, 10).await?, rows);
    assert_eq!(
        refuse(&mut connection, &[(rows[0], "retry", 60.0)]).await?,
        ["retry"]
    );
    assert_eq!(relay(&mut connection, 10).await?, [rows[3]]);
    acknowledge(&mut connection, &[rows[3]]).await?;
    assert_eq!(relay(&mut connection, 10).await?.len(), 0);
    db.run(PASS).await?;
    assert_eq!(relay(&mut connection, 10).await?, [rows[0]]);
    acknowledge(&mut connection, &[rows[0]]).await?;
    assert_eq!(relay(&mut connection, 10).await?, [rows[1], rows[2]]);
    Ok(())
}

#[tokio::test]
async fn a_long_stream_behind_a_refused_row_never_overtakes_it() -> Outcome {
    let db = Db::new().await?;
    let mut connection = db.connect().await?;
    let stream = Uuid::now_v7();
    let rows = ids_of(1300);
    publish(&mut connection, &in_stream(&rows, stream)).await?;
    assert_eq!(relay(&mut connection, 10).await?, rows[..10]);
    refuse(&mut connection, &[(rows[0], "retry", 600.0)]).await?;
    for _ in 0..5 {
        assert_eq!(
            relay(&mut connection, 10).await?.len(),
            0,
            "all of it is behind the head"
        );
    }
    let free = Uuid::now_v7();
    publish(&mut connection, &[(free, None)]).await?;
    let mut looks = 0;
    while relay(&mut connection, 10).await? != [free] {
        looks += 1;
        anyhow::ensure!(looks < 200, "a free row does not get through");
    }
    acknowledge(&mut connection, &[free]).await?;
    db.run(PASS).await?;
    let mut sent = Vec::new();
    while sent.len() < rows.len() {
        let batch = relay(&mut connection, 70).await?;
        anyhow::ensure!(
            !batch.is_empty(),
            "the stream stands still after {}",
            sent.len()
        );
        acknowledge(&mut connection, &batch).await?;
        sent.extend(batch);
    }
    assert_eq!(sent, rows);
    Ok(())
}

#[tokio::test]
async fn refusals_in_one_batch_keep_the_order_whatever_their_delays() -> Outcome {
    let db = Db::new().await?;
    let mut connection = db.connect().await?;
    let stream = Uuid::now_v7();
    let rows = ids_of(3);
    publish(&mut connection, &in_stream(&rows, stream)).await?;
    relay(&mut connection, 10).await?;
    refuse(
        &mut connection,
        &[(rows[1], "retry", 0.0), (rows[0], "retry", 600.0)],
    )
    .await?;
    assert_eq!(relay(&mut connection, 10).await?.len(), 0, "the head waits");
    // A row that the transport did not answer for stays in front of a refused one.
    let (stream, later) = (Uuid::now_v7(), ids_of(2));
    publish(&mut connection, &in_stream(&later, stream)).await?;
    refuse(&mut connection, &[(later[1], "retry", 0.0)]).await?;
    assert_eq!(relay(&mut connection, 10).await?, later);
    Ok(())
}

#[tokio::test]
async fn a_row_refused_for_good_becomes_a_dead_letter_and_its_stream_goes_on() -> Outcome {
    let db = Db::new().await?;
    let mut connection = db.connect().await?;
    let stream = Uuid::now_v7();
    let rows = ids_of(3);
    publish(&mut connection, &in_stream(&rows, stream)).await?;
    relay(&mut connection, 10).await?;
    refuse(&mut connection, &[(rows[0], "retry", 0.0)]).await?;
    assert_eq!(relay(&mut connection, 10).await?, [rows[0]]);
    assert_eq!(
        refuse(&mut connection, &[(rows[0], "dead", 0.0)]).await?,
        ["dead"]
    );
    assert_eq!(relay(&mut connection, 10).await?, [rows[1], rows[2]]);
    let letter = "SELECT count(*) FROM wh_dead_letters WHERE source = 'outbox' AND reason = 'refused' AND attempts = 2 AND destination = 'd' AND event_data IS NOT NULL";
    assert_eq!(db.value::<i64>(letter).await?, 1);
    Ok(())
}

#[tokio::test]
async fn a_late_acknowledgement_beside_another_relays_claim_leaves_nobody_waiting() -> Outcome {
    let db = Db::new().await?;
    let mut connection = db.connect().await?;
    let stream = Uuid::now_v7();
    let rows = ids_of(3);
    publish(&mut connection, &in_stream(&rows, stream)).await?;
    let one = Uuid::nil();
    assert_eq!(relay_as(&mut connection, one, 1, 0.0).await?, [rows[0]]);
    assert_eq!(
        refuse(&mut connection, &[(rows[0], "retry", 0.0)]).await?,
        ["retry"]
    );
    let mut two = db.connect().await?;
    exec(&mut two, "BEGIN").await?;
    // The second relay sets the others aside, while the first one's acknowledgement arrives.
    assert_eq!(
        relay_as(&mut two, Uuid::now_v7(), 10, 0.0).await?,
        [rows[0]]
    );
    let first = rows[0];
    let late = Meanwhile::start(db.connect().await?, |mut connection| async move {
        acknowledge(&mut connection, &[first]).await
    })
    .await?;
    db.until_blocked(late.pid).await.ok();
    exec(&mut two, "COMMIT").await?;
    assert_eq!(late.end().await?, 1);
    assert_eq!(
        relay_as(&mut connection, Uuid::now_v7(), 10, 0.0).await?,
        rows[1..]
    );
    Ok(())
}
