//! Shows how far the work is: a line that changes on a terminal, else a line a second.

use std::{
    io::{IsTerminal, Write},
    time::{Duration, Instant},
};

use sqlx::{PgPool, Row};

use crate::fleet::Fleet;

/// How far the work is, as the database sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) placed: i64,
    pub(crate) paid: i64,
    pub(crate) rejected: i64,
    pub(crate) waiting: i64,
    pub(crate) dead: i64,
}

impl Progress {
    pub(crate) async fn read(pool: &PgPool) -> Result<Self, sqlx::Error> {
        let row = sqlx::query(include_str!("sql/progress.sql"))
            .fetch_one(pool)
            .await?;
        Ok(Self {
            placed: row.try_get("placed")?,
            paid: row.try_get("paid")?,
            rejected: row.try_get("rejected")?,
            waiting: row.try_get("waiting")?,
            dead: row.try_get("dead")?,
        })
    }
}

/// Writes progress to standard error.
pub(crate) struct Display {
    live: bool,
    began: Instant,
    shown: Option<Instant>,
}

impl Display {
    pub(crate) fn new() -> Self {
        Self {
            live: std::io::stderr().is_terminal(),
            began: Instant::now(),
            shown: None,
        }
    }

    /// Whether it is time for the next line.
    pub(crate) fn is_due(&self) -> bool {
        let pause = Duration::from_millis(if self.live { 200 } else { 1_000 });
        self.shown.is_none_or(|shown| shown.elapsed() >= pause)
    }

    pub(crate) fn show(&mut self, progress: &Progress, fleet: &Fleet, planned: usize) {
        self.shown = Some(Instant::now());
        let line = format!(
            "{:5.1} s  fed {}/{planned}  placed {}  paid {}  rejected {}  waiting {}  dead {}  retries {}  kills {}",
            self.began.elapsed().as_secs_f32(),
            fleet.stored,
            progress.placed,
            progress.paid,
            progress.rejected,
            progress.waiting,
            progress.dead,
            fleet.tally().failed,
            fleet.kills,
        );
        let line = if self.live {
            // Back to the start of the line, and clear what stood there.
            format!("\r\x1b[2K{line}")
        } else {
            format!("{line}\n")
        };
        // A progress line that cannot be written is no reason to stop.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }

    /// Leaves the live line.
    pub(crate) fn finish(&self) {
        if self.live {
            let _ = std::io::stderr().write_all(b"\n");
        }
    }
}
