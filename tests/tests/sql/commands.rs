//! The key of an idempotent command: written before the code runs, decided without blocking.

use sqlx::{PgConnection, Row};

use crate::support::{Db, Outcome, exec};

async fn begin_command(
    connection: &mut PgConnection,
    scope: &str,
    key: &str,
    fingerprint: &[u8],
) -> anyhow::Result<(String, Option<String>)> {
    let row = sqlx::query("SELECT * FROM begin_command($1, $2, $3, NULL)")
        .bind(scope)
        .bind(key)
        .bind(fingerprint)
        .fetch_one(connection)
        .await?;
    Ok((row.try_get("state")?, row.try_get("result")?))
}

async fn state(connection: &mut PgConnection, fingerprint: &[u8]) -> anyhow::Result<String> {
    Ok(begin_command(connection, "pay", "k", fingerprint).await?.0)
}

async fn finish(connection: &mut PgConnection, result: &str) -> anyhow::Result<bool> {
    let answer: String = sqlx::query_scalar("SELECT finish_command('pay', 'k', $1, NULL)")
        .bind(result)
        .fetch_one(connection)
        .await?;
    Ok(answer == "recorded")
}

#[tokio::test]
async fn a_repeat_gets_the_result_and_another_payload_is_refused() -> Outcome {
    let db = Db::new().await?;
    let mut connection = db.connect().await?;
    exec(&mut connection, "BEGIN").await?;
    assert_eq!(state(&mut connection, b"a").await?, "fresh");
    assert!(finish(&mut connection, "{\"n\":1}").await?);
    exec(&mut connection, "COMMIT").await?;
    let repeated = begin_command(&mut connection, "pay", "k", b"a").await?;
    assert_eq!(repeated, ("done".to_owned(), Some("{\"n\":1}".to_owned())));
    assert_eq!(state(&mut connection, b"b").await?, "reused");
    let other_scope = begin_command(&mut connection, "refund", "k", b"b").await?;
    assert_eq!(other_scope.0, "fresh", "scopes do not collide");
    Ok(())
}

#[tokio::test]
async fn a_concurrent_repeat_is_busy_at_once_and_a_rollback_frees_the_key() -> Outcome {
    let db = Db::new().await?;
    let (mut one, mut two) = (db.connect().await?, db.connect().await?);
    exec(&mut one, "BEGIN").await?;
    assert_eq!(state(&mut one, b"a").await?, "fresh");
    // Without a lock timeout this call would hang if it waited for the key's row.
    exec(&mut two, "SET lock_timeout = '5s'").await?;
    assert_eq!(state(&mut two, b"a").await?, "busy");
    exec(&mut one, "ROLLBACK").await?;
    exec(&mut two, "BEGIN").await?;
    assert_eq!(state(&mut two, b"a").await?, "fresh");
    assert!(finish(&mut two, "2").await?);
    exec(&mut two, "COMMIT").await?;
    assert_eq!(state(&mut one, b"a").await?, "done");
    Ok(())
}

#[tokio::test]
async fn keys_do_not_run_into_their_scopes() -> Outcome {
    let db = Db::new().await?;
    let (mut one, mut two) = (db.connect().await?, db.connect().await?);
    exec(&mut one, "BEGIN").await?;
    assert_eq!(begin_command(&mut one, "ab", "c", b"a").await?.0, "fresh");
    assert_eq!(begin_command(&mut two, "a", "bc", b"a").await?.0, "fresh");
    Ok(())
}

#[tokio::test]
async fn an_execution_that_the_snapshot_cannot_see_is_a_conflict_and_never_a_second_run() -> Outcome
{
    let db = Db::new().await?;
    let (mut one, mut two) = (db.connect().await?, db.connect().await?);
    exec(
        &mut two,
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM wh_settings",
    )
    .await?;
    exec(&mut one, "BEGIN").await?;
    assert_eq!(state(&mut one, b"a").await?, "fresh");
    assert!(finish(&mut one, "1").await?);
    exec(&mut one, "COMMIT").await?;
    match state(&mut two, b"a").await {
        Ok(answer) => assert_eq!(answer, "isolation"),
        Err(error) => {
            let error: sqlx::Error = error.downcast()?;
            let code = error.as_database_error().and_then(|error| error.code());
            assert_eq!(code.as_deref(), Some("40001"), "{error}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_repeat_takes_no_lock_and_no_transaction_id() -> Outcome {
    let db = Db::new().await?;
    let mut connection = db.connect().await?;
    exec(&mut connection, "BEGIN").await?;
    assert_eq!(state(&mut connection, b"a").await?, "fresh");
    assert!(finish(&mut connection, "1").await?);
    exec(&mut connection, "COMMIT").await?;
    exec(&mut connection, "BEGIN").await?;
    assert_eq!(state(&mut connection, b"a").await?, "done");
    let traces: (i64, bool) = sqlx::query_as("SELECT (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()), pg_current_xact_id_if_assigned() IS NOT NULL")
        .fetch_one(&mut connection)
        .await?;
    assert_eq!(traces, (0, false));
    Ok(())
}

#[tokio::test]
async fn an_end_without_a_beginning_is_noticed() -> Outcome {
    let db = Db::new().await?;
    let mut connection = db.connect().await?;
    let finish = "SELECT finish_command('pay', 'k', '1', NULL)";
    let answer: String = sqlx::query_scalar(finish)
        .fetch_one(&mut connection)
        .await?;
    assert_eq!(answer, "unfenced", "outside of any transaction");
    exec(&mut connection, "BEGIN").await?;
    let other = begin_command(&mut connection, "refund", "k", b"a").await?;
    assert_eq!(other.0, "fresh");
    let answer: String = sqlx::query_scalar(finish)
        .fetch_one(&mut connection)
        .await?;
    assert_eq!(answer, "unfenced", "only the other one has begun");
    exec(&mut connection, "COMMIT; BEGIN").await?;
    assert_eq!(
        begin_command(&mut connection, "refund", "k", b"a").await?.0,
        "unfinished"
    );
    let answer: String = sqlx::query_scalar("SELECT finish_command('refund', 'k', '1', NULL)")
        .fetch_one(&mut connection)
        .await?;
    assert_eq!(answer, "unfenced", "in the next transaction");
    Ok(())
}

#[tokio::test]
async fn the_version_of_the_method_is_kept() -> Outcome {
    let db = Db::new().await?;
    let mut connection = db.connect().await?;
    exec(&mut connection, "BEGIN; SELECT begin_command('pay', 'k', 'a', '1.4.0'); SELECT finish_command('pay', 'k', NULL, '{\"n\":1}'); COMMIT").await?;
    let row: (String, Option<String>, String, bool) = sqlx::query_as(
        "SELECT method_version, result::text, error::text, completed FROM wh_command_results",
    )
    .fetch_one(&mut connection)
    .await?;
    assert_eq!(
        row,
        ("1.4.0".to_owned(), None, "{\"n\":1}".to_owned(), true)
    );
    Ok(())
}
