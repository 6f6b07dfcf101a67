//! The list of commands.

mod chaos;
mod demo;
mod dependencies;
mod http;
mod simulate;
mod test;

use std::process::ExitCode;

use clap::Subcommand;

/// What `cargo xtask` can do.
#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Moves money through two services while processes, PostgreSQL and connections are killed.
    ///
    /// Runs on a private server that is killed and restarted on the way. The last line is
    /// `chaos: lost 0, doubled 0, out of order 0` and the exit code 0, or what differs and 1.
    Chaos(chaos::Chaos),
    /// Runs the orders example on a database of its own.
    ///
    /// It shows handlers, outbox and idempotent commands on real input. Everything after `demo` is
    /// passed to the example; `cargo xtask demo -- --help` lists what it understands.
    Demo(demo::Demo),
    /// Runs the web example on a database of its own, until Ctrl-C.
    ///
    /// `POST /orders` takes effect once for each `Idempotency-Key`; the README shows it with curl.
    /// Everything after `http` is passed to the example; `cargo xtask http -- --help` lists what it
    /// understands.
    Http(http::Http),
    /// Checks licenses, bans and sources of the dependencies, offline, by the rules in `deny.toml`.
    Dependencies(dependencies::Dependencies),
    /// Simulates services with faults at every call, under paused time and by seed.
    ///
    /// No database is needed. A seed that breaks a promise says what is wrong; `--seed` repeats it.
    Simulate(simulate::Simulate),
    /// Runs every check that must pass before a change is merged.
    ///
    /// The formatting, the lints, the dependencies' licenses and sources, all tests with all features,
    /// and the documentation. It stops at the first that fails and says which it was.
    Test(test::Test),
}

/// Runs one command and gives the exit code of the whole.
pub(crate) fn run(task: &Task, offline: bool) -> anyhow::Result<ExitCode> {
    match task {
        Task::Chaos(chaos) => chaos.run(offline),
        Task::Demo(demo) => demo.run(offline),
        Task::Http(http) => http.run(offline),
        Task::Dependencies(dependencies) => dependencies.run(),
        Task::Simulate(simulate) => simulate.run(),
        Task::Test(test) => test.run(offline),
    }
}
