//! The project's own commands: `cargo xtask <command>`.
//!
//! Each command is a file below `commands`; to add one, write its file and name it in
//! `commands::Task`.

mod cargo;
mod commands;
mod database;

use std::process::ExitCode;

use clap::Parser;

/// Runs the demonstration and the checks of whizbang.
///
/// Each command prepares what it needs and says what it did. The database is the one that
/// DATABASE_URL names, else a private PostgreSQL server that is gone afterwards.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    /// Never fetch PostgreSQL; fail when the machine has none.
    #[arg(long, global = true)]
    offline: bool,

    #[command(subcommand)]
    task: commands::Task,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match commands::run(&arguments.task, arguments.offline) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
