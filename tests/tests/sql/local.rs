//! From the outbox to the own inbox, and messages that are scheduled.

use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::{
    outbox::{PASS, acknowledge, ids_of, publish_to, relay},
    support::{Db, Meanwhile, Message, Outcome, claim_h, exec, put},
};

#[tokio::test]
async fn a_scheduled_row_joins_the_end_of_its_stream_when_it_falls_due() -> Outcome {
    let db = Db::new().await?;
    db.subscribe("h", "l").await?;
    for destination in ["d", "own"] {
        let mut connection = db.connect().await?;
        let stream = Uuid::now_v7();
        let rows = ids_of(5);
        let delays = [Some(7200.0), Some(3600.0), None, Some(-5.0), Some(1800.0)];
        let scheduled: Vec<_> = rows
            .iter()
            .zip(delays)
            .map(|(id, d)| (*id, Some(stream), d))
            .collect();
        publish_to(&mut connection, destination, &scheduled).await?;
        let cancelled: i64 = sqlx::query_scalar("SELECT cancel_scheduled($1)")
            .bind(vec![rows[4], rows[4], rows[2]])
            .fetch_one(&mut connection)
            .await?;
        assert_eq!(cancelled, 1, "only what is still scheduled");
        let mut look = async |limit| {
            if destination == "d" {
                let ids = relay(&mut connection, limit).await?;
                acknowledge(&mut connection, &ids).await?;
                anyhow::Ok(ids)
            } else {
                deliver(&mut connection).await
            }
        };
        assert_eq!(look(10).await?, [rows[2], rows[3]], "what is due now");
        db.run(PASS).await?;
        assert_eq!(look(10).await?, [rows[1], rows[0]], "by their times");
        assert_eq!(look(10).await?.len(), 0);
    }
    Ok(())
}

async fn deliver(connection: &mut PgConnection) -> anyhow::Result<Vec<Uuid>> {
    let rows = sqlx::query(
        "SELECT * FROM deliver_outbox_locally('own', 100, NULL, NULL, interval '1 minute', '{}', '{}')",
    )
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| Ok(row.try_get("message_id")?))
        .collect()
}

#[tokio::test]
async fn local_delivery_moves_each_row_once_in_order_whoever_delivers() -> Outcome {
    let db = Db::new().await?;
    db.subscribe("h", "l").await?;
    let mut one = db.connect().await?;
    let stream = Uuid::now_v7();
    let rows = ids_of(250);
    let drafts: Vec<_> = rows.iter().map(|id| (*id, Some(stream), None)).collect();
    publish_to(&mut one, "own", &drafts).await?;
    exec(&mut one, "BEGIN").await?;
    assert_eq!(deliver(&mut one).await?.len(), 100);
    let second = Meanwhile::start(db.connect().await?, |mut connection| async move {
        deliver(&mut connection).await
    })
    .await?;
    db.until_blocked(second.pid).await?;
    exec(&mut one, "COMMIT").await?;
    assert_eq!(second.end().await?, rows[100..200]);
    deliver(&mut one).await?;
    assert_eq!(db.value::<i64>("SELECT count(*) FROM wh_outbox").await?, 0);
    let order: Vec<Uuid> = sqlx::query_scalar("SELECT message_id FROM wh_inbox ORDER BY sequence")
        .fetch_all(&mut one)
        .await?;
    assert_eq!(order, rows);
    Ok(())
}

#[tokio::test]
async fn local_delivery_hands_over_with_the_payload() -> Outcome {
    let db = Db::new().await?;
    db.subscribe("h", "l").await?;
    let mut connection = db.connect().await?;
    let rows = ids_of(3);
    let drafts: Vec<_> = rows.iter().map(|id| (*id, None, None)).collect();
    publish_to(&mut connection, "own", &drafts).await?;
    let delivered = sqlx::query(
        "SELECT * FROM deliver_outbox_locally('own', 100, $1, $1, interval '1 minute', '{h}', '{2}')",
    )
    .bind(Uuid::now_v7())
    .fetch_all(&mut connection)
    .await?;
    assert_eq!(delivered.len(), 3);
    let mut leased = 0;
    for row in &delivered {
        if row.try_get("leased")? {
            leased += 1;
            assert_eq!(row.try_get::<String, _>("event_data")?, "{}");
        }
    }
    assert_eq!(leased, 2);
    assert_eq!(claim_h(&mut connection).await?.len(), 1);
    Ok(())
}

#[tokio::test]
async fn an_id_that_came_from_outside_is_not_delivered_again() -> Outcome {
    let db = Db::new().await?;
    db.subscribe("h", "l").await?;
    let mut connection = db.connect().await?;
    let message = Message::new();
    put(&mut connection, std::slice::from_ref(&message)).await?;
    publish_to(&mut connection, "own", &[(message.id, None, None)]).await?;
    assert_eq!(
        deliver(&mut connection).await?,
        [message.id],
        "the row is settled"
    );
    assert_eq!(db.value::<i64>("SELECT count(*) FROM wh_inbox").await?, 1);
    assert_eq!(db.value::<i64>("SELECT count(*) FROM wh_outbox").await?, 0);
    Ok(())
}
