//! What one message costs the database when nothing goes wrong: nothing that depends on the machine.

use sqlx::{Connection, PgConnection};
use whizbang_postgres::embedded::Server;
use whizbang_tests::{Ping, World, scripted, wait_until};

const MESSAGES: i64 = 200;
const FIRST: i64 = 20;

/// Row versions of a table: inserted, updated, deleted.
const VERSIONS: &str = "SELECT relname::text, n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_user_tables WHERE relname IN ('wh_message_deduplication', 'wh_inbox', 'wh_inbox_payloads', 'wh_inbox_streams', 'wh_outbox') ORDER BY relname";

/// Most bytes of WAL of one message: its publication, its delivery, its handler's transaction with
/// an insert and a publication of the handler's own, and what becomes of that, which nobody hears.
const WAL: i64 = 4_000;

#[tokio::test]
async fn a_message_is_written_once_in_each_table_and_never_updated() {
    // A server of its own, since the WAL is counted for all databases.
    let server = Server::builder().start().expect("a server");
    server.create_database("costs").await.expect("a database");
    let world = World::on(server.connect_options("costs")).await;
    let app = world.service().register::<scripted>().start().await;
    let app = app.expect("start");
    let dispatcher = app.dispatcher();
    let send = async |number| {
        let sent = dispatcher.transaction(async |tx| {
            dispatcher.publish(tx, &Ping { number }).await?;
            anyhow::Ok(())
        });
        sent.await.expect("a commit");
        wait_until("it is handled", || async {
            app.counts().completed == u64::try_from(number + 1).unwrap_or(0)
        })
        .await;
    };
    // The first ones make plans and pages.
    for number in 0..FIRST {
        send(number).await;
    }
    let wal = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint";
    let wal_before = world.count(wal).await;
    for number in FIRST..MESSAGES {
        send(number).await;
    }
    let wal_each = (world.count(wal).await - wal_before) / (MESSAGES - FIRST);
    assert!(wal_each < WAL, "{wal_each} bytes of WAL a message");
    app.shutdown().await.expect("shutdown");
    // A session reports what it did when it ends.
    world.pool.close().await;
    let mut connection = PgConnection::connect_with(&server.connect_options("costs"))
        .await
        .expect("a connection");
    let versions: Vec<(String, i64, i64, i64)> = sqlx::query_as(VERSIONS)
        .fetch_all(&mut connection)
        .await
        .expect("statistics");
    let of = |table: &str, inserted, deleted| {
        (table.to_owned(), inserted * MESSAGES, 0, deleted * MESSAGES)
    };
    let expected = [
        of("wh_inbox", 1, 1),
        of("wh_inbox_payloads", 0, 0),
        of("wh_inbox_streams", 0, 0),
        of("wh_message_deduplication", 1, 0),
        // The message, and the one that its handler published.
        of("wh_outbox", 2, 2),
    ];
    assert_eq!(versions, expected, "inserted, updated, deleted");
}
