//! No recurring call may scan a big table, whatever statistics there are.

use sqlx::{Connection, PgConnection, Row};

use crate::support::{Db, Outcome, exec};

/// 60 000 rows in 3 000 streams, one stream of 60 000, 60 000 unordered ones, an outbox, old ids.
const FILL: &str = "
INSERT INTO wh_subscriptions (handler_name, message_type, lane) VALUES ('h', 't', 'l'), ('g', 'u', 'l');
INSERT INTO wh_inbox (message_id, handler_name, message_type, event_data, metadata, lane, stream_id, due_at)
  SELECT gen_random_uuid(), 'h', 't', '{}', '{}', 'l', md5((n % 3000)::text)::uuid, NULL FROM generate_series(1, 60000) n;
INSERT INTO wh_inbox (message_id, handler_name, message_type, event_data, metadata, lane, stream_id, due_at)
  SELECT gen_random_uuid(), 'h', 't', '{}', '{}', 'l', md5('blocked')::uuid, NULL FROM generate_series(1, 60000);
INSERT INTO wh_inbox (message_id, handler_name, message_type, event_data, metadata, lane, due_at)
  SELECT gen_random_uuid(), 'h', 't', '{}', '{}', 'l', clock_timestamp() FROM generate_series(1, 60000);
INSERT INTO wh_inbox_streams (lane, stream_id, due_at) SELECT DISTINCT 'l', stream_id,
  CASE WHEN stream_id = md5('blocked')::uuid THEN now() + interval '1 hour' ELSE now() END
  FROM wh_inbox WHERE stream_id IS NOT NULL;
INSERT INTO wh_message_deduplication (message_id, first_seen_at)
  SELECT message_id, clock_timestamp() FROM wh_inbox UNION ALL
  SELECT gen_random_uuid(), clock_timestamp() - interval '40 days' FROM generate_series(1, 20000);
INSERT INTO wh_outbox (message_id, destination, message_type, event_data, metadata, stream_id)
  SELECT gen_random_uuid(), CASE WHEN n % 2 = 0 THEN 'd' ELSE 'own' END, 't', '{}', '{}', md5((n % 300)::text)::uuid
  FROM generate_series(1, 40000) n;
INSERT INTO wh_outbox (message_id, destination, message_type, event_data, metadata, stream_id, retry_at)
  SELECT gen_random_uuid(), 'd', 't', '{}', '{}', md5('blocked')::uuid, CASE WHEN n = 1 THEN clock_timestamp() + interval '1 hour' ELSE 'infinity' END
  FROM generate_series(1, 20000) n;
";

/// Every recurring call, with arguments in place.
const CALLS: &[(&str, &str)] = &[
    (
        "claim",
        "SELECT * FROM claim_work('{h,g}', '{50,50}', '{l,l}', 100, 20, interval '1 minute', gen_random_uuid(), gen_random_uuid(), NULL)",
    ),
    (
        "store",
        "SELECT * FROM store_inbox_messages(ARRAY(SELECT gen_random_uuid() FROM generate_series(1, 100)), array_fill('t'::text, '{100}'), array_fill(false, '{100}'), array_fill('{}'::text, '{100}'), array_fill('{}'::text, '{100}'), ARRAY(SELECT CASE WHEN n % 2 = 0 THEN md5(n::text)::uuid END FROM generate_series(1, 100) n), array_fill(NULL::uuid, '{100}'), array_fill(NULL::uuid, '{100}'), array_fill(1::bigint, '{100}'), array_fill(NULL::timestamptz, '{100}'), gen_random_uuid(), gen_random_uuid(), interval '1 minute', '{h}', '{50}')",
    ),
    (
        "deliver locally",
        "SELECT * FROM deliver_outbox_locally('own', 100, gen_random_uuid(), gen_random_uuid(), interval '1 minute', '{h}', '{50}')",
    ),
    (
        "claim the outbox",
        "SELECT * FROM claim_outbox('d', 100, interval '1 minute', '018f0000-0000-7000-8000-000000000001', gen_random_uuid())",
    ),
    (
        "acknowledge",
        "SELECT complete_outbox_published(ARRAY(SELECT message_id FROM claim_outbox('d', 100, interval '1 minute', '018f0000-0000-7000-8000-000000000001', gen_random_uuid())), 'd', gen_random_uuid())",
    ),
    (
        "refuse",
        "SELECT * FROM report_outbox_failures(ARRAY(SELECT message_id FROM claim_outbox('d', 3, interval '1 minute', '018f0000-0000-7000-8000-000000000001', gen_random_uuid())), 'd', '{retry,retry,dead}', array_fill(interval '1 second', '{3}'), '{a,b,c}', '018f0000-0000-7000-8000-000000000001')",
    ),
    (
        "cancel",
        "SELECT cancel_scheduled(ARRAY(SELECT gen_random_uuid() FROM generate_series(1, 100)))",
    ),
    (
        "renew",
        "SELECT * FROM renew_leases(ARRAY(SELECT gen_random_uuid() FROM generate_series(1, 100)), array_fill('h'::text, '{100}'), array_fill(gen_random_uuid(), '{100}'), array_fill('l'::text, '{100}'), ARRAY(SELECT md5(n::text)::uuid FROM generate_series(1, 100) n), array_fill(gen_random_uuid(), '{100}'), interval '1 minute')",
    ),
    (
        "report",
        "WITH w AS (SELECT * FROM claim_work('{h}', '{20}', '{l}', 20, 1, interval '1 minute', '018f0000-0000-7000-8000-000000000002', gen_random_uuid(), NULL)), a AS (SELECT array_agg(message_id) i, array_agg(handler_name) h, array_agg(lane) l, array_agg(stream_id) s, array_agg('018f0000-0000-7000-8000-000000000002'::uuid) t, array_agg('retry'::text) c, array_agg(interval '1 hour') d, array_agg(NULL::text) n, array_agg(false) f FROM w) SELECT r.* FROM a, report_failures(i, h, l, s, t, c, d, n, n, f) r",
    ),
    (
        "complete many",
        "WITH w AS (SELECT * FROM claim_work('{h}', '{20}', '{l}', 20, 1, interval '1 minute', '018f0000-0000-7000-8000-000000000003', gen_random_uuid(), NULL)), a AS (SELECT array_agg(message_id) i, array_agg(handler_name) h, array_agg(lane) l, array_agg(stream_id) s, array_agg('018f0000-0000-7000-8000-000000000003'::uuid) t FROM w) SELECT r.* FROM a, complete_inbox_messages(i, h, l, s, t) r",
    ),
    (
        "next",
        "SELECT * FROM next_in_stream('l', md5('blocked')::uuid, '018f0000-0000-7000-8000-000000000004', interval '1 minute', 20, '{h}')",
    ),
    (
        "complete one",
        "SELECT set_config('whizbang.fence', '018f0000-0000-7000-8000-000000000004', true); SELECT complete_inbox_message((SELECT message_id FROM wh_inbox WHERE lane = 'l' AND stream_id = md5('blocked')::uuid ORDER BY sequence LIMIT 1), 'h', 'l', md5('blocked')::uuid, '018f0000-0000-7000-8000-000000000004', true)",
    ),
    (
        "close",
        "SELECT close_streams('{l}', ARRAY[md5('blocked')::uuid], ARRAY['018f0000-0000-7000-8000-000000000004'::uuid])",
    ),
    (
        "heartbeat",
        "SELECT * FROM record_heartbeat('018f0000-0000-7000-8000-000000000005', interval '30 seconds', interval '1 minute', '{h}', '{t}', '{l}')",
    ),
    (
        "release",
        "SELECT release_leases(ARRAY['018f0000-0000-7000-8000-000000000005'::uuid], ARRAY['018f0000-0000-7000-8000-000000000004'::uuid], interval '1 minute', false)",
    ),
    (
        "leave",
        "SELECT deregister_instance('018f0000-0000-7000-8000-000000000005', interval '1 minute')",
    ),
    (
        "start alone",
        "SELECT mark_started((SELECT message_id FROM wh_inbox WHERE lane = 'l' AND stream_id = md5('blocked')::uuid ORDER BY sequence LIMIT 1), 'h', 'l', md5('blocked')::uuid, '018f0000-0000-7000-8000-000000000004')",
    ),
    (
        "publish",
        "SELECT * FROM store_outbox_messages(ARRAY(SELECT gen_random_uuid() FROM generate_series(1, 20)), array_fill('d'::text, '{20}'), array_fill('t'::text, '{20}'), array_fill(false, '{20}'), array_fill('{}'::text, '{20}'), array_fill('{}'::text, '{20}'), array_fill(NULL::uuid, '{20}'), array_fill(NULL::uuid, '{20}'), array_fill(NULL::uuid, '{20}'), array_fill(NULL::timestamptz, '{20}'), array_fill(NULL::interval, '{20}'))",
    ),
    ("status", "SELECT * FROM wh_status()"),
    ("maintenance", "SELECT * FROM perform_maintenance(1000)"),
];

const BIG: [&str; 4] = [
    "wh_inbox",
    "wh_outbox",
    "wh_message_deduplication",
    "wh_inbox_streams",
];

/// Sequential scans that finished, by table, since the statistics were reset.
async fn scans(connection: &mut PgConnection) -> anyhow::Result<Vec<(String, i64)>> {
    let rows = sqlx::query("SELECT relname::text AS name, coalesce(seq_tup_read, 0)::bigint AS read FROM pg_stat_xact_user_tables WHERE relname = ANY ($1)")
        .bind(&BIG[..])
        .fetch_all(connection)
        .await?;
    rows.iter()
        .map(|row| Ok((row.try_get("name")?, row.try_get("read")?)))
        .collect()
}

/// Rows that one call may read by sequential scans, for the bounded counts of a status page.
fn allowed(call: &str) -> i64 {
    match call {
        "status" => 200_000,
        // Looks for rows without a gate once an hour.
        "maintenance" => 400_000,
        _ => 0,
    }
}

#[tokio::test]
async fn recurring_calls_scan_no_big_table() -> Outcome {
    let db = Db::filled(FILL).await?;
    db.run("INSERT INTO wh_service_instances (instance_id, service, host) VALUES ('018f0000-0000-7000-8000-000000000005', 's', 'here'); INSERT INTO wh_service_instances (instance_id, service, host, heartbeat_at) VALUES (gen_random_uuid(), 's', 'dead', now() - interval '1 hour')").await?;
    for analyzed in [false, true] {
        if analyzed {
            db.run("ANALYZE").await?;
        }
        for (what, sql) in CALLS {
            let mut connection = db.connect().await?;
            exec(&mut connection, "BEGIN; UPDATE wh_inbox_streams SET lease_token = '018f0000-0000-7000-8000-000000000004' WHERE lane = 'l' AND stream_id = md5('blocked')::uuid").await?;
            let before = scans(&mut connection).await?;
            sqlx::raw_sql(*sql).execute(&mut connection).await?;
            let after = scans(&mut connection).await?;
            exec(&mut connection, "ROLLBACK").await?;
            connection.close().await?;
            for (name, read) in after {
                let read = read
                    - before
                        .iter()
                        .find(|one| one.0 == name)
                        .map_or(0, |one| one.1);
                assert!(
                    read <= allowed(what),
                    "{what} read {read} rows of {name} by sequential scans (analyzed: {analyzed})"
                );
            }
        }
    }
    Ok(())
}

/// Rows that a call may read, in the tables above and by whatever path: in proportion to what it
/// works on, not to what waits.
const READS: &[(&str, i64)] = &[
    ("claim", 1700),
    ("store", 200),
    ("deliver locally", 700),
    ("claim the outbox", 900),
    ("acknowledge", 1300),
    ("refuse", 60),
    ("renew", 450),
    ("next", 50),
    ("complete one", 15),
    ("close", 12),
    ("heartbeat", 10),
];

#[tokio::test]
async fn calls_read_in_proportion_to_their_work() -> Outcome {
    let db = Db::filled(FILL).await?;
    db.run("INSERT INTO wh_service_instances (instance_id, service, host) VALUES ('018f0000-0000-7000-8000-000000000005', 's', 'here')").await?;
    db.run("VACUUM ANALYZE").await?;
    let mut connection = db.connect().await?;
    for (what, most) in READS {
        let Some((_, sql)) = CALLS.iter().find(|call| call.0 == *what) else {
            anyhow::bail!("no call `{what}`");
        };
        exec(&mut connection, "BEGIN; UPDATE wh_inbox_streams SET lease_token = '018f0000-0000-7000-8000-000000000004' WHERE lane = 'l' AND stream_id = md5('blocked')::uuid").await?;
        let before = reads(&mut connection).await?;
        sqlx::raw_sql(*sql).execute(&mut connection).await?;
        let read = reads(&mut connection).await? - before;
        assert!(read <= *most, "{what} read {read} rows, more than {most}");
        exec(&mut connection, "ROLLBACK").await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_empty_look_reads_almost_nothing_however_much_waits() -> Outcome {
    let db = Db::filled(FILL).await?;
    db.run("UPDATE wh_inbox SET due_at = clock_timestamp() + interval '1 hour' WHERE due_at IS NOT NULL; UPDATE wh_inbox_streams SET due_at = clock_timestamp() + interval '1 hour'; DELETE FROM wh_outbox WHERE destination = 'own'").await?;
    db.run("VACUUM ANALYZE").await?;
    let mut connection = db.connect().await?;
    for sql in [CALLS[0].1, CALLS[2].1] {
        exec(&mut connection, "BEGIN").await?;
        let before = reads(&mut connection).await?;
        let rows = sqlx::raw_sql(sql).fetch_all(&mut connection).await?;
        assert!(rows.is_empty());
        let read = reads(&mut connection).await? - before;
        assert!(read < 50, "{read} rows were read to find nothing: {sql}");
        exec(&mut connection, "ROLLBACK").await?;
    }
    Ok(())
}

/// Rows of the big tables that this transaction has read so far.
async fn reads(connection: &mut PgConnection) -> anyhow::Result<i64> {
    Ok(sqlx::query_scalar("SELECT sum(coalesce(idx_tup_fetch, 0) + seq_tup_read)::bigint FROM pg_stat_xact_user_tables WHERE relname = ANY ($1)")
        .bind(&BIG[..])
        .fetch_one(connection)
        .await?)
}
