//! Registration, heartbeats, retention, settings.

use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::support::{
    Claim, Db, Meanwhile, Message, Outcome, claim, claim_h, ids, interval, put, report,
};

async fn register(
    connection: &mut PgConnection,
    instance: Uuid,
    service: &str,
) -> anyhow::Result<String> {
    Ok(
        sqlx::query_scalar("SELECT register_instance($1, $2, 'host', '{h}', '{t}', '{l}')")
            .bind(instance)
            .bind(service)
            .fetch_one(connection)
            .await?,
    )
}

async fn heartbeat(
    connection: &mut PgConnection,
    instance: Uuid,
) -> anyhow::Result<(bool, i32, i64)> {
    let row = sqlx::query("SELECT * FROM record_heartbeat($1, $2, $3, '{h}', '{t}', '{l}')")
        .bind(instance)
        .bind(interval(30.0))
        .bind(interval(60.0))
        .fetch_one(connection)
        .await?;
    Ok((
        row.try_get("known")?,
        row.try_get("dead_peers")?,
        row.try_get("released")?,
    ))
}

async fn maintain(db: &Db) -> anyhow::Result<Vec<(String, i64)>> {
    let mut connection = db.connect().await?;
    Ok(
        sqlx::query_as("SELECT task, affected FROM perform_maintenance()")
            .fetch_all(&mut connection)
            .await?,
    )
}

#[tokio::test]
async fn a_schema_belongs_to_one_service_also_when_two_come_at_once() -> Outcome {
    let db = Db::new().await?;
    let mut one = db.connect().await?;
    crate::support::exec(&mut one, "BEGIN").await?;
    assert_eq!(register(&mut one, Uuid::now_v7(), "orders").await?, "ok");
    let other = Meanwhile::start(db.connect().await?, |mut connection| async move {
        register(&mut connection, Uuid::now_v7(), "billing").await
    })
    .await?;
    db.until_blocked(other.pid).await?;
    crate::support::exec(&mut one, "COMMIT").await?;
    assert_eq!(other.end().await?, "orders");
    assert_eq!(register(&mut one, Uuid::now_v7(), "orders").await?, "ok");
    let renamed: bool = db.value("SELECT rename_service('orders', 'sales')").await?;
    assert!(renamed);
    assert!(
        !db.value::<bool>("SELECT rename_service('orders', 'sales')")
            .await?
    );
    assert_eq!(register(&mut one, Uuid::now_v7(), "sales").await?, "ok");
    Ok(())
}

#[tokio::test]
async fn a_dead_peers_leases_are_released_and_the_take_over_counts_a_loss() -> Outcome {
    let db = Db::new().await?;
    let mut connection = db.connect().await?;
    let (dead, alive) = (Uuid::now_v7(), Uuid::now_v7());
    register(&mut connection, dead, "s").await?;
    register(&mut connection, alive, "s").await?;
    put(
        &mut connection,
        &[Message::new(), Message::of(Uuid::now_v7())],
    )
    .await?;
    let mine = Claim {
        instance: dead,
        ..Claim::by(&[("h", "l")])
    };
    assert_eq!(claim(&mut connection, &mine).await?.len(), 2);
    put(&mut connection, &[Message::new()]).await?;
    let theirs = Claim {
        instance: alive,
        ..Claim::by(&[("h", "l")])
    };
    let kept = ids(&claim(&mut connection, &theirs).await?);
    assert_eq!(kept.len(), 1);
    assert_eq!(
        heartbeat(&mut connection, alive).await?,
        (true, 0, 0),
        "nobody is dead yet"
    );
    sqlx::query("UPDATE wh_service_instances SET heartbeat_at = now() - interval '1 minute' WHERE instance_id = $1")
        .bind(dead)
        .execute(&mut connection)
        .await?;
    assert_eq!(heartbeat(&mut connection, alive).await?, (true, 1, 2));
    let taken = claim_h(&mut connection).await?;
    assert_eq!(
        taken.iter().map(|work| work.losses).collect::<Vec<_>>(),
        [1, 1]
    );
    assert!(
        taken.iter().all(|work| !kept.contains(&work.id)),
        "a living peer keeps its own"
    );
    heartbeat(&mut connection, alive).await?;
    assert_eq!(
        db.value::<i64>("SELECT count(*) FROM wh_service_instances")
            .await?,
        1
    );
    assert!(
        !heartbeat(&mut connection, dead).await?.0,
        "the reaped one learns of it"
    );
    assert_eq!(
        db.value::<i64>("SELECT count(*) FROM wh_service_instances")
            .await?,
        1
    );
    Ok(())
}

#[tokio::test]
async fn heartbeats_of_many_instances_at_once_do_not_deadlock() -> Outcome {
    let db = Db::new().await?;
    let mut connection = db.connect().await?;
    let instances: Vec<_> = (0..8).map(|_| Uuid::now_v7()).collect();
    for instance in &instances {
        register(&mut connection, *instance, "s").await?;
    }
    for _ in 0..20 {
        db.run("UPDATE wh_subscriptions SET last_seen_at = now() - interval '2 minutes'; INSERT INTO wh_service_instances (instance_id, service, host, heartbeat_at) SELECT gen_random_uuid(), 's', 'dead', now() - interval '1 hour' FROM generate_series(1, 3)").await?;
        let mut beating = Vec::new();
        for instance in instances.iter().copied() {
            let beat = |mut connection| async move { heartbeat(&mut connection, instance).await };
            beating.push(Meanwhile::start(db.connect().await?, beat).await?);
        }
        for one in beating {
            assert!(one.end().await?.0);
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_horizon_never_goes_back_and_wrong_settings_are_reported() -> Outcome {
    let db = Db::new().await?;
    let first: chrono::DateTime<chrono::Utc> = db.value("SELECT advance_dedup_horizon()").await?;
    db.run(
        "UPDATE wh_settings SET setting_value = '90' WHERE setting_key = 'dedup_retention_days'",
    )
    .await?;
    let second: chrono::DateTime<chrono::Utc> = db.value("SELECT advance_dedup_horizon()").await?;
    assert_eq!(first, second);
    for wrong in [
        "'ninety'",
        "'-1'",
        "''",
        "'0'",
        "'1e9'",
        "'999999999999'",
        "'30 '",
    ] {
        let set = format!(
            "UPDATE wh_settings SET setting_value = {wrong} WHERE setting_key = 'dedup_retention_days'"
        );
        let mut connection = db.connect().await?;
        sqlx::raw_sql(sqlx::AssertSqlSafe(set))
            .execute(&mut connection)
            .await?;
        let tasks = maintain(&db).await?;
        let ignored = tasks
            .iter()
            .any(|task| task.0 == "setting_ignored:dedup_retention_days");
        assert!(
            ignored || wrong == "'30 '",
            "{wrong} is reported: {tasks:?}"
        );
        let horizon: chrono::DateTime<chrono::Utc> =
            db.value("SELECT advance_dedup_horizon()").await?;
        let age = chrono::Utc::now() - horizon;
        assert!(
            (29..=31).contains(&age.num_days()),
            "the default of 30 days is used: {age}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_damaged_horizon_does_not_let_old_ids_through() -> Outcome {
    let db = Db::new().await?;
    db.subscribe("h", "l").await?;
    let mut connection = db.connect().await?;
    db.run("SELECT advance_dedup_horizon(); UPDATE wh_settings SET setting_value = 'yesterday' WHERE setting_key = 'dedup_purged_before'").await?;
    let old = Message {
        born_at: Some(chrono::Utc::now() - chrono::Duration::days(40)),
        ..Message::new()
    };
    let stored = crate::support::store(&mut connection, &[old], None).await?;
    assert_eq!(stored[0].outcome, "too_old");
    Ok(())
}

#[tokio::test]
async fn the_purge_takes_what_is_past_retention_in_batches_and_leaves_pinned_ids() -> Outcome {
    let db = Db::new().await?;
    db.run("INSERT INTO wh_message_deduplication (message_id, first_seen_at) SELECT gen_random_uuid(), now() - interval '40 days' - n * interval '1 second' FROM generate_series(1, 500) n; INSERT INTO wh_message_deduplication (message_id) SELECT gen_random_uuid() FROM generate_series(1, 50); INSERT INTO wh_dead_letters (source, message_id, reason) SELECT 'inbox', message_id, 'failed' FROM wh_message_deduplication ORDER BY first_seen_at LIMIT 150").await?;
    let left = "SELECT count(*) FROM wh_message_deduplication";
    let mut rounds = 0;
    while db.value::<i64>(left).await? > 200 {
        let before = db.value::<i64>(left).await?;
        db.run("SELECT * FROM perform_maintenance(100)").await?;
        let gone = before - db.value::<i64>(left).await?;
        assert!(gone <= 100, "a round stays within its batch");
        rounds += 1;
        anyhow::ensure!(rounds < 20, "pinned ids stop the purge");
    }
    for _ in 0..6 {
        db.run("SELECT * FROM perform_maintenance(100)").await?;
    }
    assert_eq!(
        db.value::<i64>(left).await?,
        200,
        "150 pinned and 50 young ones stay"
    );
    Ok(())
}

#[tokio::test]
async fn results_of_commands_past_retention_go() -> Outcome {
    let db = Db::new().await?;
    db.run("INSERT INTO wh_command_results (scope, key, fingerprint, completed, created_at) SELECT 's', n::text, 'x', true, now() - n * interval '1 day' FROM generate_series(20, 39) n").await?;
    maintain(&db).await?;
    assert_eq!(
        db.value::<i64>("SELECT count(*) FROM wh_command_results")
            .await?,
        10
    );
    Ok(())
}

#[tokio::test]
async fn rows_of_a_removed_handler_become_dead_letters_and_others_stay() -> Outcome {
    let db = Db::new().await?;
    db.subscribe("h", "both").await?;
    db.subscribe("keeper", "both").await?;
    let mut connection = db.connect().await?;
    let stream = Uuid::now_v7();
    put(
        &mut connection,
        &[Message::new(), Message::of(stream), Message::of(stream)],
    )
    .await?;
    // Of a message its rows are in the order of the handlers' names: "h" comes first.
    let keeper = Claim::by(&[("keeper", "both")]);
    let unordered = claim(&mut connection, &keeper).await?;
    assert_eq!(unordered.len(), 1, "the stream is out of its reach");
    db.run("UPDATE wh_subscriptions SET last_seen_at = now() - interval '25 hours' WHERE handler_name = 'h'").await?;
    maintain(&db).await?;
    let letters = "SELECT count(*) FROM wh_dead_letters WHERE reason = 'no_handler' AND handler_name = 'h' AND event_data IS NOT NULL";
    assert_eq!(db.value::<i64>(letters).await?, 3);
    assert_eq!(db.value::<i64>("SELECT count(*) FROM wh_inbox").await?, 3);
    let works = claim(&mut connection, &Claim::by(&[("keeper", "both")])).await?;
    assert_eq!(works.len(), 2, "the lane goes on without it");
    maintain(&db).await?;
    assert_eq!(
        db.value::<i64>("SELECT count(*) FROM wh_subscriptions")
            .await?,
        1
    );
    Ok(())
}

#[tokio::test]
async fn payloads_that_two_completions_left_behind_are_found() -> Outcome {
    let db = Db::new().await?;
    db.run("INSERT INTO wh_inbox_payloads (message_id, event_data, metadata, stored_at) SELECT gen_random_uuid(), '{}', '{}', now() - interval '1 hour' FROM generate_series(1, 5)").await?;
    maintain(&db).await?;
    assert_eq!(
        db.value::<i64>("SELECT count(*) FROM wh_inbox_payloads")
            .await?,
        0
    );
    Ok(())
}

#[tokio::test]
async fn maintenance_of_a_healthy_service_reports_nothing_and_breaks_nothing() -> Outcome {
    let db = Db::new().await?;
    db.subscribe("h", "l").await?;
    let mut connection = db.connect().await?;
    let (one, two) = (Uuid::now_v7(), Uuid::now_v7());
    put(
        &mut connection,
        &[
            Message::of(one),
            Message::of(one),
            Message::of(two),
            Message::new(),
        ],
    )
    .await?;
    let head = claim_h(&mut connection).await?.remove(0);
    report(&mut connection, &head, "retry", 600.0).await?;
    let picture = "SELECT md5(string_agg(i::text, '|' ORDER BY sequence) || (SELECT string_agg(g::text, '|' ORDER BY g.stream_id) FROM wh_inbox_streams g)) FROM wh_inbox i";
    let before: String = db.value(picture).await?;
    for (task, affected) in maintain(&db).await? {
        assert!(
            affected == 0 || task.contains("horizon"),
            "{task}: {affected}"
        );
    }
    assert_eq!(db.value::<String>(picture).await?, before);
    let status: Vec<(String, i64)> = sqlx::query_as("SELECT what, count FROM wh_status()")
        .fetch_all(&mut connection)
        .await?;
    assert!(status.len() >= 5, "{status:?}");
    Ok(())
}
