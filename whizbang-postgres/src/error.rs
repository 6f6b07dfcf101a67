//! What kind of error a database error is, decided in one place.

use std::error::Error as StdError;

use sqlx::{error::DatabaseError, postgres::PgDatabaseError};
use whizbang::{StoreError, StoreErrorKind};

/// Maps an error of the driver, saying what the store was doing.
pub(crate) fn store_error(doing: &'static str) -> impl FnOnce(sqlx::Error) -> StoreError {
    move |error| {
        let kind = kind_of(&error);
        let what = match kind {
            StoreErrorKind::Setup => format!(
                "failed to {doing}: the schema or the privileges do not fit; run \
                 `whizbang_postgres::migrate` with the version of this program and check the \
                 grants"
            ),
            _ => format!("failed to {doing}"),
        };
        StoreError::new(kind, what, error)
    }
}

/// The kind of a driver's error.
pub(crate) fn kind_of(error: &sqlx::Error) -> StoreErrorKind {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed => StoreErrorKind::Unavailable,
        sqlx::Error::Database(database) => kind_of_database(&**database),
        _ => StoreErrorKind::Other,
    }
}

fn kind_of_database(error: &dyn DatabaseError) -> StoreErrorKind {
    let code = error.code();
    code.map_or(StoreErrorKind::Other, |code| kind_of_code(&code))
}

/// The kind of an SQLSTATE; see "PostgreSQL Error Codes" in its manual.
fn kind_of_code(code: &str) -> StoreErrorKind {
    match code {
        // serialization_failure, deadlock_detected
        "40001" | "40P01" => StoreErrorKind::Conflict,
        // in_failed_sql_transaction
        "25P02" => StoreErrorKind::Aborted,
        // undefined table, function, column, schema; wrong type; insufficient privilege
        "42P01" | "42883" | "42703" | "3F000" | "42804" | "42501" => StoreErrorKind::Setup,
        // read_only_sql_transaction: a failover left us on a standby
        "25006" => StoreErrorKind::Unavailable,
        // admin_shutdown, crash_shutdown, cannot_connect_now, database_dropped, idle_session
        "57P01" | "57P02" | "57P03" | "57P04" | "57P05" | "25P03" => StoreErrorKind::Unavailable,
        // data_exception, integrity constraints, program limits such as the size of a row
        _ if code.starts_with("22") || code.starts_with("23") || code.starts_with("54") => {
            StoreErrorKind::Data
        }
        // connection exceptions; disk full, out of memory, too many connections
        _ if code.starts_with("08") || code.starts_with("53") => StoreErrorKind::Unavailable,
        _ => StoreErrorKind::Other,
    }
}

/// An error of the statement that begins a transaction. A standby refuses `READ WRITE` there as a
/// feature that is not supported; taken for an error of the message it would cost attempts.
pub(crate) fn begin_error(error: sqlx::Error) -> sqlx::Error {
    let code = error.as_database_error().and_then(|error| error.code());
    if code.as_deref() == Some("0A000") {
        return sqlx::Error::Io(std::io::Error::other(error));
    }
    error
}

/// What kind of database error hides in the chain of a handler's error. Broken connections are
/// left out: they may be to another database, and ours shows itself when we roll back.
pub(crate) fn classify(error: &(dyn StdError + 'static)) -> Option<StoreErrorKind> {
    chain(error).find_map(|error| match error.downcast_ref::<StoreError>() {
        Some(error) => Some(error.kind),
        None => database_error(error).map(kind_of_database),
    })
}

/// The unique constraint (or index) whose violation hides in the chain of a handler's error.
pub(crate) fn violated_unique<'e>(error: &'e (dyn StdError + 'static)) -> Option<&'e str> {
    let error = chain(error).find_map(database_error)?;
    match error.is_unique_violation() {
        true => error.constraint(),
        false => None,
    }
}

fn chain<'e>(
    error: &'e (dyn StdError + 'static),
) -> impl Iterator<Item = &'e (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// A wrapper that is transparent (`#[error(transparent)]`) shows the source of the driver's error
/// and not that error itself.
fn database_error<'e>(error: &'e (dyn StdError + 'static)) -> Option<&'e dyn DatabaseError> {
    if let Some(sqlx::Error::Database(error)) = error.downcast_ref() {
        return Some(&**error);
    }
    if let Some(error) = error.downcast_ref::<Box<dyn DatabaseError>>() {
        return Some(&**error);
    }
    let error = error.downcast_ref::<PgDatabaseError>()?;
    Some(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_connection_of_the_handler_is_not_taken_for_ours() {
        let error = sqlx::Error::Io(std::io::Error::other("gone"));
        assert_eq!(classify(&error), None);
        assert_eq!(kind_of(&error), StoreErrorKind::Unavailable);
    }
}
