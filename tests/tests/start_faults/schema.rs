//! A schema that the service cannot start on, alone and among other faults.

use whizbang::{StartError, StartFault};
use whizbang_postgres::{PgStore, SCHEMA_VERSION};
use whizbang_tests::World;

use super::{mail, note, place};

/// Why a service with nothing else wrong does not start.
async fn refused(store: PgStore) -> String {
    let builder = whizbang::Builder::new(store).service("orders");
    match builder.without_discovery().register::<note>().start().await {
        Err(StartError::Store(error)) => error.to_string(),
        Err(other) => panic!("another refusal: {other}"),
        Ok(_) => panic!("the service started"),
    }
}

/// Why a service that lacks a state does not start.
async fn refused_with_a_state_missing(store: PgStore) -> String {
    let builder = whizbang::Builder::new(store).service("orders");
    let error = match builder.without_discovery().register::<mail>().start().await {
        Err(error @ StartError::Faults(_)) => error,
        Err(other) => panic!("another refusal: {other}"),
        Ok(_) => panic!("the service started"),
    };
    let text = error.to_string();
    assert!(text.contains("asks for `State<"), "{text}");
    assert!(text.contains(&place("mail")), "{text}");
    text
}

#[tokio::test]
async fn an_unmigrated_schema() {
    let world = World::new().await;
    let store = PgStore::new(world.pool.clone()).schema("empty");
    let expected = "run `whizbang_postgres::migrate(&pool)` first";
    let text = refused(store.clone()).await;
    assert!(
        text.contains("schema `empty`") && text.contains(expected),
        "{text}"
    );
    let text = refused_with_a_state_missing(store).await;
    assert!(
        text.contains("schema `empty`") && text.contains(expected),
        "{text}"
    );
}

#[tokio::test]
async fn a_schema_of_another_version() {
    let world = World::new().await;
    let newer = SCHEMA_VERSION + 1;
    sqlx::query("INSERT INTO wh_migrations (version, name, checksum) VALUES ($1, 'later', '')")
        .bind(newer)
        .execute(&world.pool)
        .await
        .expect("a migration of a later release");
    let store = PgStore::new(world.pool.clone());
    let expected = format!(
        "has version {newer}, this program knows versions up to {SCHEMA_VERSION}; deploy a program built with a newer"
    );
    let text = refused(store.clone()).await;
    assert!(text.contains(&expected), "{text}");
    let text = refused_with_a_state_missing(store.clone()).await;
    assert!(text.contains(&expected), "{text}");

    sqlx::query("DELETE FROM wh_migrations")
        .execute(&world.pool)
        .await
        .expect("an older schema");
    let expected = format!("has version 0, this program needs {SCHEMA_VERSION}");
    let text = refused(store.clone()).await;
    assert!(text.contains(&expected), "{text}");
    let text = refused_with_a_state_missing(store).await;
    assert!(text.contains(&expected), "{text}");
}

#[tokio::test]
async fn a_schema_of_another_service() {
    let world = World::new().await;
    let store = PgStore::new(world.pool.clone());
    let app = whizbang::Builder::new(store.clone())
        .service("billing")
        .without_discovery()
        .register::<note>()
        .start()
        .await
        .expect("start");
    app.shutdown().await.expect("shutdown");
    let expected = "belongs to service `billing`, not to `orders`";
    let text = refused(store.clone()).await;
    assert!(text.contains(expected), "{text}");
    let text = refused_with_a_state_missing(store).await;
    assert!(text.contains(expected), "{text}");
}

#[tokio::test]
async fn tables_of_another_program() {
    let world = World::new().await;
    let sql = "CREATE SCHEMA theirs; CREATE TABLE theirs.wh_migrations (id int);
        CREATE SCHEMA half; CREATE TABLE half.wh_inbox (id int)";
    sqlx::raw_sql(sql)
        .execute(&world.pool)
        .await
        .expect("tables");
    for schema in ["theirs", "half"] {
        let text = refused(PgStore::new(world.pool.clone()).schema(schema)).await;
        assert!(text.contains("tables of another program"), "{text}");
        let migrated = whizbang_postgres::migrate_schema(&world.pool, schema).await;
        let text = migrated.expect_err("not ours").to_string();
        assert!(
            text.contains("named like ours; give whizbang a schema of its own"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn a_refused_start_leaves_no_trace() {
    let world = World::new().await;
    let builder = whizbang::Builder::new(PgStore::new(world.pool.clone())).service("orders");
    let error = builder
        .without_discovery()
        .register::<mail>()
        .start()
        .await
        .err();
    let Some(StartError::Faults(faults)) = error else {
        panic!("a state is missing: {error:?}");
    };
    let from_the_store = faults
        .iter()
        .any(|fault| matches!(fault, StartFault::Store(_)));
    assert!(!from_the_store, "the schema is fine: {faults:?}");
    let claimed = "SELECT count(*) FROM wh_settings WHERE setting_key = 'service_name'";
    assert_eq!(world.count(claimed).await, 0);
}
