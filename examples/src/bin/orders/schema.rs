//! The database of the example: a schema of its own, made anew at each run.

use std::str::FromStr;

use anyhow::Context;
use sqlx::{
    Connection, PgConnection, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};

use crate::catalogue;

/// The schema; what is in it is thrown away at the next run.
pub(crate) const SCHEMA: &str = "whizbang_orders_example";

/// Connections of each worker.
pub(crate) const WORKER_CONNECTIONS: u32 = 11;

/// Connections of the parent.
pub(crate) const PARENT_CONNECTIONS: u32 = 2;

/// A pool whose statements find the tables of the example.
pub(crate) async fn connect(url: &str, connections: u32) -> anyhow::Result<PgPool> {
    let options = PgConnectOptions::from_str(url)
        .context("DATABASE_URL is no address of a PostgreSQL database")?
        .options([("search_path", SCHEMA)]);
    // A pool would try for half a minute and then say only that it ran out of time.
    let first = PgConnection::connect_with(&options)
        .await
        .context("the database cannot be reached; check DATABASE_URL and that the server runs")?;
    first.close().await?;
    Ok(PgPoolOptions::new()
        .max_connections(connections)
        .connect_lazy_with(options))
}

/// Throws the last run away and creates all tables.
pub(crate) async fn create(pool: &PgPool) -> anyhow::Result<()> {
    let drop = format!("DROP SCHEMA IF EXISTS {SCHEMA} CASCADE");
    sqlx::raw_sql(sqlx::AssertSqlSafe(drop))
        .execute(pool)
        .await
        .context("the schema of the last run could not be dropped")?;
    whizbang_postgres::migrate_schema(pool, SCHEMA).await?;
    sqlx::raw_sql(include_str!("sql/schema.sql"))
        .execute(pool)
        .await
        .context("the tables of the example could not be created")?;
    for item in &catalogue::ITEMS {
        sqlx::query("INSERT INTO stock (sku, available) VALUES ($1, $2)")
            .bind(item.sku)
            .bind(item.in_stock)
            .execute(pool)
            .await
            .context("the shelves could not be filled")?;
    }
    Ok(())
}
