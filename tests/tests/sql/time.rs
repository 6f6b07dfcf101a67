//! P10: leases, delays and schedules count from the statement, however old its transaction is, and
//! from the database's clock, whatever the session's time zone is.

use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    outbox::publish_to,
    support::{Claim, Db, Message, Offer, Outcome, claim, exec, interval, put, report, store},
};

/// How old a transaction is in which everything is called.
const AGE: f64 = 0.4;

async fn begin_an_old_transaction(connection: &mut PgConnection) -> Outcome {
    exec(connection, "BEGIN; SELECT pg_sleep(0.4)").await
}

/// Seconds from the beginning of the transaction to the earliest of these times.
async fn earliest(connection: &mut PgConnection, times: &'static str) -> anyhow::Result<f64> {
    Ok(sqlx::query_scalar(times).fetch_one(connection).await?)
}

const LEASES: &str = "SELECT extract(epoch FROM min(d.due_at) - transaction_timestamp())::float8 FROM (SELECT due_at FROM wh_inbox WHERE lease_token IS NOT NULL UNION ALL SELECT due_at FROM wh_inbox_streams) d";

#[tokio::test]
async fn leases_count_from_the_statement() -> Outcome {
    let db = Db::new().await?;
    db.subscribe("h", "l").await?;
    let mut connection = db.connect().await?;
    let messages = || [Message::new(), Message::of(Uuid::now_v7())];

    begin_an_old_transaction(&mut connection).await?;
    let room = &[("h", 10)][..];
    let token = Uuid::now_v7();
    let stored = store(&mut connection, &messages(), Some(&Offer { token, room })).await?;
    assert!(stored.iter().all(|one| one.leased), "{stored:?}");
    let lease = earliest(&mut connection, LEASES).await?;
    assert!(lease >= 60.0 + AGE, "handed over for {lease} s");
    exec(&mut connection, "ROLLBACK").await?;

    put(&mut connection, &messages()).await?;
    begin_an_old_transaction(&mut connection).await?;
    let works = claim(&mut connection, &Claim::by(&[("h", "l")])).await?;
    assert_eq!(works.len(), 2);
    let lease = earliest(&mut connection, LEASES).await?;
    assert!(lease >= 60.0 + AGE, "claimed for {lease} s");
    exec(&mut connection, "COMMIT").await?;

    begin_an_old_transaction(&mut connection).await?;
    for work in &works {
        let (one, stream) = if work.stream.is_some() {
            (0, 1)
        } else {
            (1, 0)
        };
        sqlx::query("SELECT * FROM renew_leases($1, $2, $3, $4, $5, $6, $7)")
            .bind(vec![work.id; one])
            .bind(vec![work.handler.clone(); one])
            .bind(vec![work.token; one])
            .bind(vec![work.lane.clone(); stream])
            .bind(vec![work.stream; stream])
            .bind(vec![work.token; stream])
            .bind(interval(60.0))
            .execute(&mut connection)
            .await?;
    }
    let lease = earliest(&mut connection, LEASES).await?;
    assert!(lease >= 60.0 + AGE, "renewed for {lease} s");
    exec(&mut connection, "COMMIT").await
}

#[tokio::test]
async fn retries_count_from_the_statement() -> Outcome {
    let db = Db::new().await?;
    db.subscribe("h", "l").await?;
    let mut connection = db.connect().await?;
    put(
        &mut connection,
        &[Message::new(), Message::of(Uuid::now_v7())],
    )
    .await?;
    let works = claim(&mut connection, &Claim::by(&[("h", "l")])).await?;
    begin_an_old_transaction(&mut connection).await?;
    for work in &works {
        report(&mut connection, work, "retry", 5.0).await?;
    }
    let due = "SELECT extract(epoch FROM min(d.due_at) - transaction_timestamp())::float8 FROM (SELECT due_at FROM wh_inbox WHERE stream_id IS NULL UNION ALL SELECT due_at FROM wh_inbox_streams) d";
    let wait = earliest(&mut connection, due).await?;
    assert!(wait >= 5.0 + AGE, "again after {wait} s");
    exec(&mut connection, "COMMIT").await
}

#[tokio::test]
async fn schedules_count_from_the_statement_in_every_time_zone() -> Outcome {
    let db = Db::new().await?;
    let zones = [
        "UTC",
        "Asia/Jakarta",
        "America/St_Johns",
        "Pacific/Chatham",
        "Pacific/Kiritimati",
    ];
    for zone in zones {
        let mut connection = db.connect().await?;
        sqlx::query("SELECT set_config('TimeZone', $1, false)")
            .bind(zone)
            .execute(&mut connection)
            .await?;
        begin_an_old_transaction(&mut connection).await?;
        publish_to(&mut connection, "d", &[(Uuid::now_v7(), None, Some(5.0))]).await?;
        let at = "SELECT extract(epoch FROM min(scheduled_at) - transaction_timestamp())::float8 FROM wh_outbox";
        let wait = earliest(&mut connection, at).await?;
        assert!((5.0 + AGE..6.5 + AGE).contains(&wait), "{zone}: {wait} s");
        exec(&mut connection, "ROLLBACK").await?;
    }
    Ok(())
}
