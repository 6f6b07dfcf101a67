//! The document that this project implements: its SQL runs verbatim.

use whizbang_tests::World;

#[tokio::test]
async fn the_documented_statements_run_verbatim() {
    let world = World::new().await;
    for statement in [
        "CREATE TABLE IF NOT EXISTS wh_message_deduplication (\n  message_id UUID NOT NULL PRIMARY KEY,\n  first_seen_at TIMESTAMPTZ NOT NULL DEFAULT CURRENT_TIMESTAMP\n);",
        "CREATE INDEX IF NOT EXISTS idx_message_dedup_first_seen\n  ON wh_message_deduplication (first_seen_at);",
        "SELECT COUNT(*) FROM wh_message_deduplication;",
        "SELECT pg_total_relation_size('wh_message_deduplication');",
        "INSERT INTO wh_settings (setting_key, setting_value, value_type, description)\nVALUES ('dedup_retention_days', '90', 'integer', 'Days to retain message deduplication entries')\nON CONFLICT (setting_key) DO UPDATE SET setting_value = EXCLUDED.setting_value;",
        "SELECT message_id, COUNT(*)\nFROM wh_message_deduplication\nGROUP BY message_id\nHAVING COUNT(*) > 1;",
        "SELECT * FROM wh_inbox WHERE message_id IS NULL;",
        "SELECT destination, message_type, event_data::TEXT,\n       COUNT(*)\nFROM wh_outbox\nGROUP BY destination, message_type, event_data::TEXT\nHAVING COUNT(*) > 1;",
        "SELECT * FROM perform_maintenance();",
    ] {
        sqlx::raw_sql(statement)
            .execute(&world.pool)
            .await
            .unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
    let retention = world
        .count("SELECT setting_value::bigint FROM wh_settings WHERE setting_key = 'dedup_retention_days'")
        .await;
    assert_eq!(retention, 90);
}

#[tokio::test]
async fn maintenance_purges_what_is_older_than_the_setting_and_counts_it() {
    let world = World::new().await;
    sqlx::raw_sql(
        "INSERT INTO wh_message_deduplication (message_id, first_seen_at) SELECT gen_random_uuid(), now() - day * interval '1 day' FROM generate_series(1, 100) day",
    )
    .execute(&world.pool)
    .await
    .expect("ids");
    let purged = world
        .count("SELECT affected FROM perform_maintenance() WHERE task = 'purge_deduplication'")
        .await;
    assert_eq!(purged, 71, "days 30 to 100");
    for (value, left) in [("ninety", 29), ("-1", 29), ("10", 9)] {
        sqlx::query(
            "UPDATE wh_settings SET setting_value = $1 WHERE setting_key = 'dedup_retention_days'",
        )
        .bind(value)
        .execute(&world.pool)
        .await
        .expect("set");
        sqlx::raw_sql("SELECT * FROM perform_maintenance()")
            .execute(&world.pool)
            .await
            .expect("a wrong setting is no error");
        assert_eq!(
            world
                .count("SELECT count(*) FROM wh_message_deduplication")
                .await,
            left,
            "{value}"
        );
    }
}
