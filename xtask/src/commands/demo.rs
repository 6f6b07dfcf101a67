//! `cargo xtask demo`: the orders example on a database of its own.

use std::process::ExitCode;

use crate::{
    cargo::{cargo, exit_code},
    database::Database,
};

/// The arguments of `cargo xtask demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct Demo {
    /// The profile to build with: `dev` builds faster, `release` runs faster.
    #[arg(long, default_value = "dev")]
    profile: String,

    /// Passed to the example.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

impl Demo {
    pub(crate) fn run(&self, offline: bool) -> anyhow::Result<ExitCode> {
        let database = Database::prepare("demo", offline)?;
        let mut example = cargo();
        example
            .args(["run", "--profile", &self.profile])
            .args(["--package", "whizbang-examples", "--bin", "orders", "--"])
            .args(&self.args)
            .env("DATABASE_URL", database.url());
        eprintln!("xtask: running the orders example (the first build takes a while)");
        let code = exit_code(&mut example)?;
        database.finish()?;
        Ok(code)
    }
}
