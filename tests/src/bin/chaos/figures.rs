//! The figures of a run, for people to read.

use std::{
    fmt,
    io::{self, Write},
};

use super::{broker::Traffic, fleet::Losses, ledger::Judgement, wire::Tally};

/// What has happened so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figures {
    pub(crate) seconds: u64,
    pub(crate) transfers: usize,
    pub(crate) traffic: Traffic,
    pub(crate) tally: Tally,
    pub(crate) losses: Losses,
    pub(crate) crashes: u64,
    pub(crate) cuts: u64,
    pub(crate) freezes: u64,
    /// Commits whose answer was lost, and commits that PostgreSQL never heard of.
    pub(crate) commits: (u64, u64),
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} s: {} transfers, {} handler runs, {} workers killed, {} stopped, {} PostgreSQL crashes, {} lost COMMIT answers",
            self.seconds,
            self.transfers,
            self.tally.completed,
            self.losses.kills,
            self.losses.stops,
            self.crashes,
            self.commits.0,
        )
    }
}

impl Figures {
    /// The table at the end of a run.
    pub(crate) fn print(&self, judged: &Judgement) -> io::Result<()> {
        let lines = [
            ("transfers asked for", self.transfers as u64),
            ("effects found", judged.effects),
            ("deliveries by the broker", self.traffic.delivered),
            ("of them repeats", self.traffic.repeated),
            ("messages sent to the broker", self.traffic.sent),
            ("batches whose answer was lost", self.traffic.answers_lost),
            ("messages the broker refused once", self.traffic.refused),
            ("duplicates recognised (at least)", self.tally.duplicates),
            ("handler runs that failed (at least)", self.tally.failed),
            ("leases lost and noticed (at least)", self.tally.leases_lost),
            ("workers killed (SIGKILL)", self.losses.kills),
            ("workers stopped past their lease", self.losses.stops),
            ("workers aborted by a handler", self.losses.aborts),
            ("workers restarted in good order", self.losses.restarts),
            ("PostgreSQL killed and restarted", self.crashes),
            ("times all connections were cut", self.cuts),
            ("times all connections froze", self.freezes),
            ("COMMIT answers lost", self.commits.0),
            ("COMMITs that never arrived", self.commits.1),
            ("dead letters, all of them meant", judged.letters),
        ];
        let mut out = io::stdout().lock();
        for (what, count) in lines {
            writeln!(out, "{what:>36}  {count}")?;
        }
        out.flush()
    }
}
