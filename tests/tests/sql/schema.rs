//! The contract with operators: names, the documented statements verbatim, awkward schemas.

use sqlx::{Connection, PgConnection};

use crate::support::{Db, Outcome};

/// The statements of the source document, as they stand there.
const DOCUMENTED: &str = "
CREATE TABLE IF NOT EXISTS wh_message_deduplication (
  message_id UUID NOT NULL PRIMARY KEY,
  first_seen_at TIMESTAMPTZ NOT NULL DEFAULT CURRENT_TIMESTAMP
);

-- Index used by perform_maintenance retention purge
CREATE INDEX IF NOT EXISTS idx_message_dedup_first_seen
  ON wh_message_deduplication (first_seen_at);

SELECT COUNT(*) FROM wh_message_deduplication;
SELECT pg_total_relation_size('wh_message_deduplication');

-- perform_maintenance purges entries older than dedup_retention_days (default 30)
INSERT INTO wh_settings (setting_key, setting_value, value_type, description)
VALUES ('dedup_retention_days', '90', 'integer', 'Days to retain message deduplication entries')
ON CONFLICT (setting_key) DO UPDATE SET setting_value = EXCLUDED.setting_value;

SELECT message_id, COUNT(*)
FROM wh_message_deduplication
GROUP BY message_id
HAVING COUNT(*) > 1;

SELECT * FROM wh_inbox WHERE message_id IS NULL;

SELECT destination, message_type, event_data::TEXT,
       COUNT(*)
FROM wh_outbox
GROUP BY destination, message_type, event_data::TEXT
HAVING COUNT(*) > 1;

INSERT INTO wh_message_deduplication (message_id, first_seen_at)
VALUES ('018f0000-0000-7000-8000-000000000001', now())
ON CONFLICT ON CONSTRAINT wh_message_deduplication_pkey DO NOTHING;
";

#[tokio::test]
async fn the_documented_statements_run_as_they_stand() -> Outcome {
    let db = Db::new().await?;
    db.run(DOCUMENTED).await?;
    let days: String = db
        .value("SELECT setting_value FROM wh_settings WHERE setting_key = 'dedup_retention_days'")
        .await?;
    assert_eq!(days, "90");
    let columns: i64 = db.value("SELECT count(*) FROM information_schema.columns WHERE table_name = 'wh_message_deduplication'").await?;
    assert_eq!(columns, 3, "ours stood and was left alone");
    let constraints: i64 = db.value("SELECT count(*) FROM pg_constraint WHERE conname IN ('wh_message_deduplication_pkey', 'wh_inbox_pkey')").await?;
    assert_eq!(constraints, 2);
    Ok(())
}

#[tokio::test]
async fn two_schemas_with_awkward_names_live_side_by_side() -> Outcome {
    let db = Db::new().await?;
    let mut connection = db.connect().await?;
    for schema in ["we ird-Schéma", "quo\"te"] {
        let script = whizbang_postgres::migration_script(schema);
        sqlx::raw_sql(sqlx::AssertSqlSafe(script))
            .execute(&mut connection)
            .await?;
    }
    connection.close().await?;
    let mut connection = db.connect().await?;
    let insert = "INSERT INTO {s}.wh_subscriptions (handler_name, message_type, lane) VALUES ('h', 't', 'l'); SELECT * FROM {s}.store_inbox_messages(ARRAY[gen_random_uuid()], '{t}', '{f}', '{1}', '{1}', ARRAY[gen_random_uuid()], '{NULL}', '{NULL}', '{NULL}', '{NULL}', NULL, NULL, NULL, '{}', '{}'); SELECT * FROM {s}.perform_maintenance()";
    run(&mut connection, &insert.replace("{s}", "\"we ird-Schéma\"")).await?;
    let count = async |connection: &mut PgConnection, schema: &str| -> anyhow::Result<i64> {
        let sql = format!("SELECT count(*) FROM {schema}.wh_inbox");
        Ok(sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
            .fetch_one(connection)
            .await?)
    };
    assert_eq!(count(&mut connection, "\"we ird-Schéma\"").await?, 1);
    assert_eq!(count(&mut connection, "\"quo\"\"te\"").await?, 0);
    assert_eq!(count(&mut connection, "public").await?, 0);
    Ok(())
}

async fn run(connection: &mut PgConnection, sql: &str) -> Outcome {
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned()))
        .execute(connection)
        .await?;
    Ok(())
}

#[tokio::test]
async fn functions_take_their_names_from_their_own_schema_only() -> Outcome {
    let db = Db::new().await?;
    let open: Vec<String> = {
        let mut connection = db.connect().await?;
        sqlx::query_scalar("SELECT proname::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND NOT EXISTS (SELECT FROM unnest(proconfig) c WHERE c LIKE 'search_path=%')")
            .fetch_all(&mut connection)
            .await?
    };
    assert!(
        open.is_empty(),
        "without a search_path of their own: {open:?}"
    );
    Ok(())
}

#[tokio::test]
async fn tables_and_functions_say_what_they_are() -> Outcome {
    let db = Db::new().await?;
    let silent: i64 = db.value("SELECT (SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND obj_description(oid, 'pg_class') IS NULL) + (SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND obj_description(oid, 'pg_proc') IS NULL)").await?;
    assert_eq!(silent, 0);
    Ok(())
}
