//! What can go wrong with a private server, and what to do about it.

use std::{fmt, io, path::PathBuf, process::ExitStatus};

/// Why a private server or a test database could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmbeddedError {
    /// The machine has no PostgreSQL that this user can run.
    #[error(
        "no PostgreSQL server programs were found ({searched}); run `{advice}` or set DATABASE_URL"
    )]
    NotFound {
        /// Where they were looked for, and what was wrong with those that were found.
        searched: String,
        /// The command that installs them here.
        advice: String,
    },
    /// A package manager was asked for PostgreSQL and failed.
    #[error("`{command}` failed ({status}), so PostgreSQL could not be installed: {output}")]
    Install {
        /// The command line as it was run.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// The end of what it printed.
        output: String,
    },
    /// `initdb` did not make a database cluster.
    #[error("`{command}` failed ({status}): {output}")]
    InitDb {
        /// The command line as it was run.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// The end of what it printed.
        output: String,
    },
    /// PostgreSQL ended, or was not ready in time.
    #[error("the private PostgreSQL server {problem}; its log is kept in {}:\n{tail}", log.display())]
    Start {
        /// What happened.
        problem: String,
        /// The whole log.
        log: PathBuf,
        /// The last lines of the log.
        tail: String,
    },
    /// PostgreSQL did not end in time.
    #[error("the private PostgreSQL server in {} did not end in {seconds} s; end process {pid} by hand", directory.display())]
    Stop {
        /// The server's folder.
        directory: PathBuf,
        /// How long it was waited for.
        seconds: u64,
        /// The process that looks after the server.
        pid: u32,
    },
    /// A setting of the builder has a name that PostgreSQL cannot have.
    #[error(
        "`{name}` is no name of a PostgreSQL setting: it may hold letters, digits, `_` and `.`"
    )]
    Setting {
        /// The name as given.
        name: String,
    },
    /// The operating system refused something.
    #[error("could not {doing}")]
    Io {
        /// What was tried.
        doing: String,
        /// The cause.
        source: io::Error,
    },
    /// The database refused something.
    #[error("could not {doing}")]
    Database {
        /// What was tried.
        doing: String,
        /// The cause.
        source: sqlx::Error,
    },
    /// The closure that fills a template database failed.
    #[error("the template database `{key}` could not be prepared")]
    Prepare {
        /// The key of the template.
        key: String,
        /// The error of the closure.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The thread that looks after the test databases ended before it was ready.
    #[error("the thread that looks after test databases ended early; see its message above")]
    Janitor,
}

/// Puts the name of what was tried to an error of the operating system or the database.
pub(super) trait Doing<T> {
    /// `doing` completes the sentence "could not …".
    fn doing(self, doing: impl fmt::Display) -> Result<T, EmbeddedError>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: impl fmt::Display) -> Result<T, EmbeddedError> {
        self.map_err(|source| EmbeddedError::Io {
            doing: doing.to_string(),
            source,
        })
    }
}

impl<T> Doing<T> for Result<T, sqlx::Error> {
    fn doing(self, doing: impl fmt::Display) -> Result<T, EmbeddedError> {
        self.map_err(|source| EmbeddedError::Database {
            doing: doing.to_string(),
            source,
        })
    }
}

/// The last lines of a program's output, for an error message.
pub(super) fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.trim_end().lines().collect();
    let (_, last) = all.split_at(all.len().saturating_sub(lines));
    last.join("\n")
}
