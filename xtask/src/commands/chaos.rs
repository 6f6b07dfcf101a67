//! `cargo xtask chaos`: real processes, a real PostgreSQL, and everything that goes wrong.

use std::process::ExitCode;

use crate::cargo::{cargo, exit_code};

/// The arguments of `cargo xtask chaos`.
#[derive(Debug, clap::Args)]
pub(crate) struct Chaos {
    /// How long things go wrong.
    #[arg(long, default_value_t = 1.0, value_name = "N")]
    minutes: f64,

    /// Repeats the transfers and the kinds of faults of another run.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,

    /// The profile to build with: `dev` builds faster, `release` runs faster.
    #[arg(long, default_value = "dev")]
    profile: String,
}

impl Chaos {
    /// Never on the database of `DATABASE_URL`: the server is killed on the way.
    pub(crate) fn run(&self, offline: bool) -> anyhow::Result<ExitCode> {
        let mut chaos = cargo();
        chaos
            .args(["run", "--profile", &self.profile])
            .args(["--package", "whizbang-tests", "--bin", "chaos", "--"])
            .args(["--minutes", &self.minutes.to_string()]);
        if let Some(seed) = self.seed {
            chaos.args(["--seed", &seed.to_string()]);
        }
        if offline {
            chaos.env("WHIZBANG_OFFLINE", "1");
        }
        eprintln!("xtask: running chaos (the first build takes a while)");
        exit_code(&mut chaos)
    }
}
