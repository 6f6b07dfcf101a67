//! Creating and upgrading the tables and functions.

use sha2::{Digest, Sha256};
use sqlx::{AssertSqlSafe, PgConnection, PgPool, Row};
use whizbang::{StoreError, StoreErrorKind, store::StoreResult};

use crate::{
    calls::quoted,
    store::{DEFAULT_SCHEMA, PgStore},
};

mod bundle;

use bundle::{FUNCTIONS, MIGRATIONS};

/// Version of the schema that this version of the crate works with.
pub const SCHEMA_VERSION: i32 = MIGRATIONS.len() as i32;

/// Why the schema could not be created or upgraded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// A newer version of the crate has been here.
    #[error(
        "schema `{schema}` has version {found}, this program knows versions up to {known}; deploy a program built with a newer whizbang-postgres"
    )]
    Newer {
        /// The schema.
        schema: String,
        /// Version found.
        found: i32,
        /// Version known.
        known: i32,
    },
    /// The role may not do what is needed.
    #[error(
        "the role may not create the tables in schema `{schema}`; let a role with CREATE on the schema run the migration, or run the output of `migration_script` as one"
    )]
    Privilege {
        /// The schema.
        schema: String,
        /// What the database says.
        #[source]
        source: sqlx::Error,
    },
    /// A migration that was applied before has another text now.
    #[error(
        "migration {version} of schema `{schema}` was applied with another text; released migrations never change, so this database was migrated by a modified build"
    )]
    Changed {
        /// The schema.
        schema: String,
        /// The migration.
        version: i32,
    },
    /// Tables of somebody else's stand where ours belong.
    #[error(
        "schema `{schema}` holds tables of another program that are named like ours; give whizbang a schema of its own with `migrate_schema` and `PgStore::schema`"
    )]
    Foreign {
        /// The schema.
        schema: String,
        /// What the database says.
        #[source]
        source: sqlx::Error,
    },
    /// The database failed.
    #[error("failed to migrate schema `{schema}`")]
    Database {
        /// The schema.
        schema: String,
        /// What the database says.
        #[source]
        source: sqlx::Error,
    },
}

/// Creates or upgrades the tables in schema `public`. Safe to call from many processes at once:
/// one migrates, the others wait and find it done.
///
/// # Errors
/// See [`MigrateError`]; a failed migration leaves nothing behind.
pub async fn migrate(pool: &PgPool) -> Result<(), MigrateError> {
    migrate_schema(pool, DEFAULT_SCHEMA).await
}

/// Creates or upgrades the tables in this schema, which is created if it is missing.
///
/// # Errors
/// As [`migrate`].
pub async fn migrate_schema(pool: &PgPool, schema: &str) -> Result<(), MigrateError> {
    let failed = |source: sqlx::Error| explain(schema, source);
    let mut transaction = pool
        .begin_with(AssertSqlSafe(crate::store::BEGIN))
        .await
        .map_err(failed)?;
    // Held until the transaction ends, so that it works behind a pooler as well.
    run(&mut transaction, &lock_statement(schema))
        .await
        .map_err(failed)?;
    prepare_schema(&mut transaction, schema)
        .await
        .map_err(failed)?;
    let applied = applied(&mut transaction).await.map_err(failed)?;
    check_applied(schema, &applied)?;
    for migration in MIGRATIONS.iter().skip(applied.len()) {
        run(&mut transaction, migration.sql).await.map_err(failed)?;
        run(&mut transaction, &record_statement(migration))
            .await
            .map_err(failed)?;
    }
    apply_functions(&mut transaction, applied.len() < MIGRATIONS.len())
        .await
        .map_err(failed)?;
    transaction.commit().await.map_err(failed)
}

/// Everything that [`migrate_schema`] would run on an empty schema, to be read or run by a DBA.
pub fn migration_script(schema: &str) -> String {
    let mut script = String::from("BEGIN;\n");
    script.push_str(&format!(
        "CREATE SCHEMA IF NOT EXISTS {};\n",
        quoted(schema)
    ));
    script.push_str(&format!("{};\n\n", search_path(schema)));
    for migration in MIGRATIONS {
        script.push_str(migration.sql);
        script.push_str(&format!("\n{};\n\n", record_statement(migration)));
    }
    for function in FUNCTIONS {
        script.push_str(function.sql);
        script.push('\n');
    }
    script.push_str(&format!("{};\nCOMMIT;\n", checksum_statement()));
    script
}

/// A file of SQL that is part of the crate.
pub(crate) struct Script {
    pub(crate) name: &'static str,
    pub(crate) sql: &'static str,
}

/// The path that names resolve by while objects are created; functions keep it.
fn search_path(schema: &str) -> String {
    format!("SET LOCAL search_path TO {}, pg_temp", quoted(schema))
}

fn lock_statement(schema: &str) -> String {
    let hash = Sha256::digest(format!("whizbang migration {schema}"));
    let key = hash
        .iter()
        .take(8)
        .fold(0, |key, byte| (key << 8) | i64::from(*byte));
    format!("SELECT pg_advisory_xact_lock({key})")
}

async fn run(connection: &mut PgConnection, sql: &str) -> Result<(), sqlx::Error> {
    sqlx::Executor::execute(connection, sqlx::raw_sql(AssertSqlSafe(sql)))
        .await
        .map(drop)
}

/// A role without the right to create schemas may still use one that is there.
async fn prepare_schema(connection: &mut PgConnection, schema: &str) -> Result<(), sqlx::Error> {
    let there: bool =
        sqlx::query_scalar("SELECT exists(SELECT FROM pg_namespace WHERE nspname = $1)")
            .persistent(false)
            .bind(schema)
            .fetch_one(&mut *connection)
            .await?;
    if !there {
        run(connection, &format!("CREATE SCHEMA {}", quoted(schema))).await?;
    }
    run(connection, &search_path(schema)).await
}

/// Versions and checksums applied so far, in order.
async fn applied(connection: &mut PgConnection) -> Result<Vec<(i32, String)>, sqlx::Error> {
    let there: bool = sqlx::query_scalar("SELECT to_regclass('wh_migrations') IS NOT NULL")
        .persistent(false)
        .fetch_one(&mut *connection)
        .await?;
    if !there {
        return Ok(Vec::new());
    }
    let rows = sqlx::query("SELECT version, checksum FROM wh_migrations ORDER BY version")
        .persistent(false)
        .fetch_all(connection)
        .await?;
    rows.iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
        .collect()
}

fn check_applied(schema: &str, applied: &[(i32, String)]) -> Result<(), MigrateError> {
    if let Some((found, _)) = applied.last().filter(|(found, _)| *found > SCHEMA_VERSION) {
        return Err(MigrateError::Newer {
            schema: schema.to_owned(),
            found: *found,
            known: SCHEMA_VERSION,
        });
    }
    for ((version, found), migration) in applied.iter().zip(MIGRATIONS) {
        if *found != checksum(migration.sql) {
            return Err(MigrateError::Changed {
                schema: schema.to_owned(),
                version: *version,
            });
        }
    }
    Ok(())
}

/// Functions are replaced as a whole whenever their text has changed.
async fn apply_functions(connection: &mut PgConnection, anew: bool) -> Result<(), sqlx::Error> {
    let found: Option<String> = sqlx::query_scalar(
        "SELECT setting_value FROM wh_settings WHERE setting_key = 'functions_checksum'",
    )
    .persistent(false)
    .fetch_optional(&mut *connection)
    .await?;
    if !anew && found.as_deref() == Some(functions_checksum().as_str()) {
        return Ok(());
    }
    for function in FUNCTIONS {
        run(connection, function.sql).await?;
    }
    run(connection, &checksum_statement()).await
}

fn version_of(migration: &Script) -> &'static str {
    migration.name.split('_').next().unwrap_or(migration.name)
}

/// Names and checksums are ours and hold no quotes.
fn record_statement(migration: &Script) -> String {
    format!(
        "INSERT INTO wh_migrations (version, name, checksum) VALUES ({}, '{}', '{}')",
        version_of(migration).trim_start_matches('0'),
        migration.name,
        checksum(migration.sql)
    )
}

fn checksum_statement() -> String {
    let checksum = functions_checksum();
    format!(
        "INSERT INTO wh_settings (setting_key, setting_value, value_type, description) VALUES ('functions_checksum', '{checksum}', 'string', 'Text of the functions that are installed') ON CONFLICT (setting_key) DO UPDATE SET setting_value = EXCLUDED.setting_value"
    )
}

fn checksum(sql: &str) -> String {
    Sha256::digest(sql)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn functions_checksum() -> String {
    let all: String = FUNCTIONS.iter().map(|function| function.sql).collect();
    checksum(&all)
}

fn explain(schema: &str, source: sqlx::Error) -> MigrateError {
    let schema = schema.to_owned();
    let code = match &source {
        sqlx::Error::Database(error) => error.code(),
        _ => None,
    };
    match code.as_deref() {
        Some("42501") => MigrateError::Privilege { schema, source },
        // A table that is there already, or one of our names without our columns.
        Some("42P07" | "42703") => MigrateError::Foreign { schema, source },
        _ => MigrateError::Database { schema, source },
    }
}

/// Refuses a schema that is missing, older or newer than this program.
pub(crate) async fn check_version(store: &PgStore) -> StoreResult<()> {
    let schema = store.schema_name();
    let query = store.query(&store.calls().schema_version);
    let found: Result<Option<i32>, StoreError> =
        store.value("read the schema version", query).await;
    let found = match found {
        Err(error) if error.kind == StoreErrorKind::Setup => {
            return Err(StoreError {
                what: format!(
                    "schema `{schema}` has no whizbang tables, or tables of another program of the same names, or this role may not read them; run `whizbang_postgres::migrate(&pool)` first, or grant the role what the guide lists"
                ),
                ..error
            });
        }
        found => found?.unwrap_or(0),
    };
    if found == SCHEMA_VERSION {
        return Ok(());
    }
    let what = if found < SCHEMA_VERSION {
        format!(
            "schema `{schema}` has version {found}, this program needs {SCHEMA_VERSION}; run `whizbang_postgres::migrate(&pool)`"
        )
    } else {
        format!(
            "schema `{schema}` has version {found}, this program knows versions up to {SCHEMA_VERSION}; deploy a program built with a newer whizbang-postgres"
        )
    };
    Err(StoreError::message(StoreErrorKind::Setup, what))
}
