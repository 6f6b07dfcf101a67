//! How to connect to a private server.

use std::path::Path;

use sqlx::postgres::{PgConnectOptions, PgSslMode};

use super::settings::PORT_NUMBER;

/// Connects through the socket in a folder, as the superuser.
pub(super) fn private(sockets: &Path, database: &str) -> PgConnectOptions {
    PgConnectOptions::new_without_pgpass()
        .socket(sockets)
        .port(PORT_NUMBER)
        .username("postgres")
        .database(database)
        .ssl_mode(PgSslMode::Disable)
}

/// A name as PostgreSQL quotes identifiers.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
