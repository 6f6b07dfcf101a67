//! What several files of these tests need.

use std::time::Duration;

use sqlx::PgConnection;
use uuid::Uuid;
use whizbang::{
    Envelope, Message,
    store::{ClaimRequest, Room, Store, Work},
    transport::RawMessage,
};
use whizbang_postgres::{Builder, PgStore};
use whizbang_tests::{World, wait_until};

/// A message as a broker delivers it.
pub(crate) fn raw<M: Message>(id: Uuid, message: &M) -> RawMessage {
    RawMessage::from_envelope(&envelope(id, message))
}

/// A message under an id of the test's choice.
pub(crate) fn envelope<M: Message>(id: Uuid, message: &M) -> Envelope {
    let mut envelope = Envelope::new(message).expect("test messages encode");
    envelope.id = id;
    envelope
}

/// The store after a service like this was here once: it knows the subscriptions, and nobody
/// takes anything.
pub(crate) async fn store_after(world: &World, service: Builder) -> PgStore {
    let app = service.start().await.expect("start");
    app.shutdown().await.expect("shutdown");
    PgStore::new(world.pool.clone())
}

/// Asks for work of one handler that is its own lane.
pub(crate) fn claim_of(handler: &str, limit: usize, lease: Duration) -> ClaimRequest {
    ClaimRequest {
        instance: Uuid::now_v7(),
        token: Uuid::now_v7(),
        lease,
        room: vec![Room {
            handler: handler.to_owned(),
            lane: handler.to_owned(),
            limit,
        }],
        limit,
        run: 20,
        rescan: true,
    }
}

/// Claims for one handler.
pub(crate) async fn claim(store: &PgStore, handler: &str, limit: usize) -> Vec<Work> {
    let request = claim_of(handler, limit, Duration::from_secs(60));
    store.claim(&request).await.expect("claim")
}

/// Lets every lease in the inbox run out.
pub(crate) async fn end_leases(world: &World) {
    sqlx::raw_sql(
        "UPDATE wh_inbox SET due_at = now() - interval '1 second' WHERE lease_token IS NOT NULL; UPDATE wh_inbox_streams SET due_at = now() - interval '1 second' WHERE lease_token IS NOT NULL",
    )
    .execute(&world.pool)
    .await
    .expect("end the leases");
}

/// Waits until a statement of this kind waits for a lock in the world's database.
pub(crate) async fn until_blocked(world: &World, kind: &str) {
    let pattern = format!("%{kind}%");
    wait_until("a statement waits for a lock", || async {
        let waiting: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE $1",
        )
        .bind(&pattern)
        .fetch_one(&world.pool)
        .await
        .expect("a count");
        waiting > 0
    })
    .await;
}

/// Waits until no connection of the world's database is left inside a transaction.
pub(crate) async fn no_open_transactions(world: &World) {
    wait_until("no transaction is left open", || async {
        world
            .count("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND (state LIKE 'idle in transaction%' OR state = 'active')")
            .await
            == 0
    })
    .await;
}

/// Runs statements on a connection, one after another.
pub(crate) async fn run(connection: &mut PgConnection, sql: &'static str) {
    sqlx::raw_sql(sql)
        .execute(connection)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// Waits longer than usual for a condition, where leases and timeouts must pass first.
pub(crate) async fn patiently<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let waited = tokio::time::timeout(Duration::from_secs(90), async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(waited.await.is_ok(), "did not come true in time: {what}");
}
