//! `cargo xtask test`: everything that must pass before a change is merged.

use std::{
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

use anyhow::Context;

use crate::{cargo::cargo, database};

/// The arguments of `cargo xtask test`: none so far.
#[derive(Debug, clap::Args)]
pub(crate) struct Test {}

struct Step {
    name: &'static str,
    arguments: &'static [&'static str],
    environment: &'static [(&'static str, &'static str)],
}

const STEPS: &[Step] = &[
    Step {
        name: "formatting",
        arguments: &["fmt", "--all", "--check"],
        environment: &[],
    },
    Step {
        name: "lints",
        arguments: &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--all-features",
            "--",
            "-D",
            "warnings",
        ],
        environment: &[],
    },
    Step {
        name: "dependencies",
        arguments: &["xtask", "dependencies"],
        environment: &[],
    },
    Step {
        name: "tests",
        arguments: &["test", "--workspace", "--all-features"],
        // Without optimisation a few are enough.
        environment: &[("WHIZBANG_SEEDS", "50")],
    },
    Step {
        name: "simulation",
        arguments: &["xtask", "simulate", "--seeds", "2000"],
        environment: &[],
    },
    Step {
        name: "documentation",
        arguments: &["doc", "--workspace", "--all-features", "--no-deps"],
        environment: &[("RUSTDOCFLAGS", "-D warnings")],
    },
];

impl Test {
    pub(crate) fn run(&self, offline: bool) -> anyhow::Result<ExitCode> {
        // Held to the end, so that all test programs find the same server.
        let _server = database::shared(offline)?;
        let mut passed = Vec::new();
        for step in STEPS {
            eprintln!("xtask: {}: cargo {}", step.name, step.arguments.join(" "));
            let started = Instant::now();
            let succeeded = step.run(offline)?;
            let took = started.elapsed();
            if !succeeded {
                summarise(&passed);
                eprintln!(
                    "xtask: {} FAILED after {:.1} s",
                    step.name,
                    took.as_secs_f32()
                );
                eprintln!("xtask: to repeat: {}", step.line());
                return Ok(ExitCode::FAILURE);
            }
            passed.push((step.name, took));
        }
        summarise(&passed);
        eprintln!("xtask: everything passed");
        Ok(ExitCode::SUCCESS)
    }
}

impl Step {
    fn run(&self, offline: bool) -> anyhow::Result<bool> {
        let mut command: Command = cargo();
        command
            .args(self.arguments)
            .envs(self.environment.iter().copied());
        if offline {
            command.env("WHIZBANG_OFFLINE", "1");
        }
        let status = command
            .status()
            .with_context(|| format!("could not run `{}`", self.line()))?;
        Ok(status.success())
    }

    /// The step as it would be typed.
    fn line(&self) -> String {
        let mut line = String::new();
        for (name, value) in self.environment {
            line.push_str(&format!("{name}='{value}' "));
        }
        line.push_str("cargo ");
        line.push_str(&self.arguments.join(" "));
        line
    }
}

fn summarise(passed: &[(&str, Duration)]) {
    for (name, took) in passed {
        eprintln!("xtask: {name} passed in {:.1} s", took.as_secs_f32());
    }
}
