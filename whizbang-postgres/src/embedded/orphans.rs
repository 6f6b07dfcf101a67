//! Ending the processes of a PostgreSQL that can no longer end them itself.

use std::{
    io,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    process::{Pid, Signal, kill_process},
};

use super::{EmbeddedError, error::Doing};

/// Processes end at once when killed, unless the kernel is busy for them.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// Kills every process that stands in a folder or below, and waits until there is none.
///
/// PostgreSQL's processes all stand in their data folder, and no others do.
pub(super) fn end(folder: &Path) -> Result<(), EmbeddedError> {
    let deadline = Instant::now() + GONE_WITHIN;
    loop {
        let found = standing_in(folder);
        if found.is_empty() || Instant::now() > deadline {
            return Ok(());
        }
        for pid in found {
            signal(pid, Signal::KILL)?;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Sends a signal to a process; that it is gone already is no error.
pub(super) fn signal(pid: Pid, signal: Signal) -> Result<(), EmbeddedError> {
    let sent = match kill_process(pid, signal) {
        Err(Errno::SRCH) => Ok(()),
        other => other.map_err(io::Error::from),
    };
    sent.doing(format_args!("end process {}", pid.as_raw_nonzero()))
}

/// On systems without `/proc` this finds none, and the processes end when they next look around.
fn standing_in(folder: &Path) -> Vec<Pid> {
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    processes
        .flatten()
        .filter_map(|process| {
            let pid = process.file_name().to_str()?.parse().ok()?;
            let stands = std::fs::read_link(process.path().join("cwd")).ok()?;
            stands
                .starts_with(folder)
                .then(|| Pid::from_raw(pid))
                .flatten()
        })
        .collect()
}
