//! What the parent and its workers say to each other: lines of text through pipes.
//!
//! Down: the number of a delivery, a blank, and the line of the file as it is.
//! Up: one [`Report`] as JSON on each line.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// What a worker tells.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Report {
    /// These deliveries are safe in the inbox, or were recognised.
    Stored { deliveries: Vec<u64> },
    /// A mail went out.
    Mailed {
        order_id: Uuid,
        idempotency_key: Uuid,
    },
    /// What the worker has counted since it started.
    Counts(Tally),
}

/// Counters of one worker, or of all of them.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) duplicates: u64,
    pub(crate) conflicts: u64,
    pub(crate) dropped: u64,
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    pub(crate) leases_lost: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Self) {
        self.duplicates += other.duplicates;
        self.conflicts += other.conflicts;
        self.dropped += other.dropped;
        self.completed += other.completed;
        self.failed += other.failed;
        self.leases_lost += other.leases_lost;
    }
}

impl From<whizbang::Counts> for Tally {
    fn from(counts: whizbang::Counts) -> Self {
        Self {
            duplicates: counts.duplicates,
            conflicts: counts.conflicts,
            dropped: counts.dropped,
            completed: counts.completed,
            failed: counts.failed,
            leases_lost: counts.leases_lost,
        }
    }
}

/// A worker's way to its parent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reporter;

impl Reporter {
    /// Writes a line at once; a line is never cut in two by another task.
    pub(crate) fn say(self, report: &Report) -> io::Result<()> {
        let mut line = serde_json::to_vec(report)?;
        line.push(b'\n');
        let mut out = io::stdout().lock();
        out.write_all(&line)?;
        out.flush()
    }
}

/// A delivery as a line.
pub(crate) fn delivery(number: u64, content: &[u8]) -> Vec<u8> {
    let mut line = format!("{number} ").into_bytes();
    line.extend_from_slice(content);
    line.push(b'\n');
    line
}

/// Reads a delivery.
pub(crate) fn read_delivery(line: &[u8]) -> Option<(u64, &[u8])> {
    let blank = line.iter().position(|byte| *byte == b' ')?;
    let number = std::str::from_utf8(line.get(..blank)?).ok()?.parse().ok()?;
    Some((number, line.get(blank + 1..)?))
}
