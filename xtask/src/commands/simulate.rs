//! `cargo xtask simulate`: services on the store in memory, under paused time, with faults.

use std::process::ExitCode;

use crate::cargo::{cargo, exit_code};

/// The arguments of `cargo xtask simulate`.
#[derive(Debug, clap::Args)]
pub(crate) struct Simulate {
    /// How many seeds to run.
    #[arg(long, default_value_t = 1000, value_name = "N")]
    seeds: u64,

    /// The first of them.
    #[arg(long, default_value_t = 0, value_name = "S")]
    first: u64,

    /// Runs this seed alone.
    #[arg(long, value_name = "S", conflicts_with_all = ["seeds", "first"])]
    seed: Option<u64>,
}

impl Simulate {
    /// Needs no database. Built with optimisation in a folder of its own, since thousands of seeds
    /// run and other builds keep their settings.
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        let mut simulation = cargo();
        simulation
            .args(["test", "--quiet", "--package", "whizbang-tests"])
            .args(["--test", "simulation", "--target-dir", "target/simulation"])
            .args(["--config", "profile.dev.opt-level=2"])
            .args([
                "--",
                "--exact",
                "every_seed_keeps_every_promise",
                "--nocapture",
            ]);
        match self.seed {
            Some(seed) => simulation.env("WHIZBANG_SEED", seed.to_string()),
            None => simulation
                .env_remove("WHIZBANG_SEED")
                .env("WHIZBANG_FIRST_SEED", self.first.to_string())
                .env("WHIZBANG_SEEDS", self.seeds.to_string()),
        };
        eprintln!("xtask: running the simulation (the first build takes a while)");
        exit_code(&mut simulation)
    }
}
