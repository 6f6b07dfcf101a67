//! The database that a command works on.

use std::env;

use anyhow::Context;
use whizbang_postgres::embedded::{Installation, Server, Shared};

/// A database for one command, gone afterwards unless it is the user's own.
pub(crate) struct Database {
    url: String,
    server: Option<Server>,
}

impl Database {
    /// The database of `DATABASE_URL`, else a new one on a server that is only for this command.
    pub(crate) fn prepare(name: &str, offline: bool) -> anyhow::Result<Self> {
        if let Some(url) = from_environment() {
            eprintln!("xtask: using the database of DATABASE_URL");
            return Ok(Self { url, server: None });
        }
        let found = find(offline)?;
        let server = Server::start().context("could not start a private server")?;
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("could not start a runtime")?
            .block_on(server.create_database(name))?;
        eprintln!(
            "xtask: started a private PostgreSQL {} with the database `{name}`; \
             it is gone when this command ends",
            found.version()
        );
        Ok(Self {
            url: server.url(name),
            server: Some(server),
        })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Ends the private server.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        match self.server {
            Some(server) => server.stop().context("could not end the private server"),
            None => Ok(()),
        }
    }
}

/// The server that the test programs share.
pub(crate) fn shared(offline: bool) -> anyhow::Result<&'static Shared> {
    if from_environment().is_some() {
        eprintln!("xtask: tests use databases of their own on the server of DATABASE_URL");
    } else {
        let found = find(offline)?;
        eprintln!(
            "xtask: tests share a private PostgreSQL {} from {}",
            found.version(),
            found.folder().display()
        );
    }
    whizbang_postgres::embedded::shared().context("could not prepare a server for the tests")
}

fn from_environment() -> Option<String> {
    env::var("DATABASE_URL").ok().filter(|url| !url.is_empty())
}

fn find(offline: bool) -> anyhow::Result<Installation> {
    let found = match offline {
        true => Installation::find_offline(),
        false => Installation::find(),
    };
    Ok(found?)
}
