//! The database of the example: a schema of its own, which stays when the program ends.

use std::str::FromStr;

use anyhow::Context;
use sqlx::{
    Connection, PgConnection, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};

/// The schema of the service's tables and of the framework's.
pub(crate) const SCHEMA: &str = "whizbang_http_example";

/// Connects, and creates what is missing.
pub(crate) async fn prepare(url: &str) -> anyhow::Result<PgPool> {
    let options = PgConnectOptions::from_str(url)
        .context("DATABASE_URL is no address of a PostgreSQL database")?
        .options([("search_path", SCHEMA)]);
    // A pool would try for half a minute and then say only that it ran out of time.
    let first = PgConnection::connect_with(&options)
        .await
        .context("the database cannot be reached; check DATABASE_URL and that the server runs")?;
    first.close().await?;
    let pool = PgPoolOptions::new()
        .max_connections(20)
        .connect_lazy_with(options);
    whizbang_postgres::migrate_schema(&pool, SCHEMA).await?;
    sqlx::raw_sql(include_str!("sql/schema.sql"))
        .execute(&pool)
        .await
        .context("the tables of the example could not be created")?;
    Ok(pool)
}
