//! The command line of operators: migrations, status, dead letters.

use std::{io::Write, process::ExitCode};

use clap::{Parser, Subcommand};
use sqlx::{PgPool, postgres::PgPoolOptions};
use whizbang::{BoxError, store::Store};
use whizbang_postgres::{PgStore, migrate_schema, migration_script};

/// Looks after the tables of a whizbang service.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// The database; otherwise the environment variable DATABASE_URL.
    #[arg(long, global = true)]
    database: Option<String>,
    /// The schema of the service.
    #[arg(long, global = true, default_value = "public")]
    schema: String,
    #[command(subcommand)]
    command: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Creates or upgrades the tables and functions.
    Migrate {
        /// Prints the SQL for an empty schema instead of running it.
        #[arg(long)]
        print: bool,
    },
    /// Shows what waits, what is leased and what died.
    Status,
    /// One round of housekeeping.
    Maintain,
    /// Lists dead letters, oldest first.
    DeadLetters {
        /// Only those with a number above this.
        #[arg(long, default_value_t = 0)]
        after: i64,
        /// At most so many.
        #[arg(long, default_value_t = 50)]
        limit: usize,
        /// With payload and the whole chain of errors.
        #[arg(long)]
        full: bool,
    },
    /// Puts dead letters back to work.
    Requeue {
        /// Numbers, as `dead-letters` lists them.
        #[arg(required = true)]
        ids: Vec<i64>,
    },
    /// Throws dead letters away; a stream parked behind one goes on.
    Discard {
        /// Numbers, as `dead-letters` lists them.
        #[arg(required = true)]
        ids: Vec<i64>,
    },
    /// Hands the schema over to a service of another name. Stop the service first.
    RenameService {
        /// Its name so far.
        from: String,
        /// Its new name.
        to: String,
    },
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(Options::parse()).await {
        Ok(code) => code,
        Err(error) => {
            let error = whizbang::error_chain(&*error);
            // Nobody is left to tell when standard error is closed.
            let _ = writeln!(std::io::stderr(), "whizbang: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> Result<ExitCode, BoxError> {
    let mut out = std::io::stdout().lock();
    if let Task::Migrate { print: true } = options.command {
        writeln!(out, "{}", migration_script(&options.schema))?;
        return Ok(ExitCode::SUCCESS);
    }
    let pool = connect(options.database).await?;
    let store = PgStore::new(pool.clone()).schema(&options.schema);
    match options.command {
        Task::Migrate { .. } => {
            migrate_schema(&pool, &options.schema).await?;
            writeln!(out, "schema `{}` is up to date", options.schema)?;
        }
        Task::Status => {
            for line in store.status().await? {
                let oldest = line.oldest.map(|time| format!("  since {time}"));
                let oldest = oldest.unwrap_or_default();
                writeln!(out, "{:<18} {:>8}{oldest}", line.what, line.count)?;
            }
        }
        Task::Maintain => {
            for task in store.maintain().await? {
                writeln!(out, "{:<28} {:>8}", task.task, task.affected)?;
            }
        }
        Task::DeadLetters { after, limit, full } => {
            list(&store, &mut out, after, limit, full).await?;
        }
        Task::Requeue { ids } => return requeue(&store, &mut out, &ids).await,
        Task::Discard { ids } => {
            let discarded = store.discard_dead_letters(&ids).await?;
            writeln!(out, "discarded {discarded} of {}", ids.len())?;
            if usize::try_from(discarded) != Ok(ids.len()) {
                return Ok(ExitCode::FAILURE);
            }
        }
        Task::RenameService { from, to } => {
            if !store.rename_service(&from, &to).await? {
                return Err(
                    format!("schema `{}` does not belong to `{from}`", options.schema).into(),
                );
            }
            writeln!(out, "schema `{}` belongs to `{to}` now", options.schema)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn connect(database: Option<String>) -> Result<PgPool, BoxError> {
    let url = database
        .or_else(|| std::env::var("DATABASE_URL").ok())
        .ok_or("no database: give --database URL or set DATABASE_URL")?;
    let pool = PgPoolOptions::new()
        .max_connections(2)
        .connect(&url)
        .await?;
    Ok(pool)
}

async fn list(
    store: &PgStore,
    out: &mut impl Write,
    after: i64,
    limit: usize,
    full: bool,
) -> Result<(), BoxError> {
    for letter in store.dead_letters(after, limit).await? {
        let text = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let error = letter.error.clone().unwrap_or_default();
        let first_line = error.lines().next().unwrap_or_default();
        let shown: String = first_line.chars().take(100).collect();
        writeln!(
            out,
            "{:>6}  {}  {:<12} {} {} attempts {}  {shown}",
            letter.id,
            letter.died_at.format("%Y-%m-%d %H:%M:%S"),
            letter.reason,
            text(letter.message_type),
            text(letter.handler.or(letter.destination)),
            letter.attempts,
        )?;
        if full {
            let id = letter.message_id.map(|id| id.to_string());
            writeln!(out, "        message {}", text(id))?;
            writeln!(out, "        payload {}", text(letter.payload))?;
            if let Some(raw) = letter.raw {
                writeln!(out, "        bytes   {}", String::from_utf8_lossy(&raw))?;
            }
            writeln!(out, "        error   {error}")?;
        }
    }
    Ok(())
}

async fn requeue(store: &PgStore, out: &mut impl Write, ids: &[i64]) -> Result<ExitCode, BoxError> {
    let mut all = true;
    for requeued in store.requeue(ids).await? {
        writeln!(out, "{:>6}  {}", requeued.id, requeued.outcome)?;
        all &= requeued.outcome == "requeued";
    }
    Ok(if all {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
