//! Test databases on the shared server.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use sqlx::Connection;
use whizbang_postgres::embedded::{TestDatabase, shared, test_database};

use crate::support::Outcome;

async fn exists(name: &str) -> Result<bool, Box<dyn std::error::Error>> {
    let server = shared()?;
    let mut connection = sqlx::PgConnection::connect(&server.url("postgres")).await?;
    let found = sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)")
        .bind(name)
        .fetch_one(&mut connection)
        .await?;
    Ok(found)
}

async fn wait_until_gone(name: &str) -> Outcome {
    tokio::time::timeout(Duration::from_secs(30), async {
        while exists(name).await? {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    })
    .await?
}

#[tokio::test]
async fn two_databases_do_not_see_each_other() -> Outcome {
    let (one, other) = (test_database().await?, test_database().await?);
    sqlx::query("CREATE TABLE t (a int)")
        .execute(&one.pool())
        .await?;
    let answer = sqlx::query("SELECT * FROM t").execute(&other.pool()).await;
    let error = answer.unwrap_err().into_database_error().unwrap();
    assert_eq!(error.code().unwrap(), "42P01");
    Ok(())
}

#[tokio::test]
async fn the_url_leads_to_the_same_database() -> Outcome {
    let database = test_database().await?;
    let mut connection = sqlx::PgConnection::connect(&database.url()).await?;
    let name: String = sqlx::query_scalar("SELECT current_database()::text")
        .fetch_one(&mut connection)
        .await?;
    assert_eq!(name, database.name());
    Ok(())
}

#[tokio::test]
async fn a_dropped_database_goes_although_it_is_in_use() -> Outcome {
    let database = test_database().await?;
    let name = database.name().to_owned();
    let _user = sqlx::PgConnection::connect_with(&database.connect_options()).await?;
    drop(database);
    wait_until_gone(&name).await
}

#[tokio::test]
async fn a_closed_database_is_gone_at_once() -> Outcome {
    let database = test_database().await?;
    let name = database.name().to_owned();
    database.close().await?;
    assert!(!exists(&name).await?);
    Ok(())
}

#[tokio::test]
async fn a_template_is_filled_once_and_copied_for_each() -> Outcome {
    static FILLED: AtomicUsize = AtomicUsize::new(0);
    let key = format!("counting {}", std::process::id());
    let make = || {
        TestDatabase::from_template(&key, async |pool| {
            FILLED.fetch_add(1, Ordering::SeqCst);
            sqlx::query("CREATE TABLE t (a int)").execute(pool).await?;
            Ok::<_, sqlx::Error>(())
        })
    };
    let made = tokio::try_join!(make(), make(), make())?;
    for database in [&made.0, &made.1, &made.2] {
        sqlx::query("INSERT INTO t VALUES (1)")
            .execute(&database.pool())
            .await?;
        let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM t")
            .fetch_one(&database.pool())
            .await?;
        assert_eq!(rows, 1);
    }
    assert_eq!(FILLED.load(Ordering::SeqCst), 1);
    Ok(())
}

#[tokio::test]
async fn a_template_that_fails_is_tried_again() -> Outcome {
    let key = format!("failing {}", std::process::id());
    let error = TestDatabase::from_template(&key, async |pool| {
        sqlx::query("no such statement")
            .execute(pool)
            .await
            .map(drop)
    })
    .await
    .unwrap_err();
    assert!(error.to_string().contains(&key), "{error}");
    TestDatabase::from_template(&key, async |_| Ok::<_, sqlx::Error>(())).await?;
    Ok(())
}
