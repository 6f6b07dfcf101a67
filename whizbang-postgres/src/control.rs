//! The connection that heartbeats and renewals have for themselves.

use std::time::Duration;

use sqlx::{
    AssertSqlSafe, Connection, PgConnection, PgPool, Postgres,
    postgres::{PgArguments, PgRow},
    query::Query,
};
use tokio::{sync::Mutex, time::timeout};

use crate::{
    error::begin_error,
    store::{BEGIN, no_answer},
};

/// One connection, apart from the pool so that busy handlers do not make an instance look dead.
///
/// It is no pool of one either: a pool looks at a connection that comes back before it gives it
/// out again, and waits for the answer without end. On a connection that has gone silent that
/// would be the last heartbeat.
#[derive(Debug)]
pub(crate) struct Control {
    /// Asked for its options at each connect, since passwords are rotated and servers move.
    pool: PgPool,
    connection: Mutex<Option<PgConnection>>,
}

impl Control {
    pub(crate) fn new(pool: PgPool) -> Self {
        Self {
            pool,
            connection: Mutex::new(None),
        }
    }

    /// Runs one statement, in a transaction of its own if the session's defaults do not suit us.
    pub(crate) async fn rows(
        &self,
        within: Duration,
        explicit: bool,
        query: Query<'_, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        let mut place = self.connection.lock().await;
        let mut connection = self.connected(place.take(), within).await?;
        let rows = timeout(within, run(&mut connection, explicit, query)).await;
        let rows = rows.unwrap_or_else(|_elapsed| Err(no_answer(within)));
        // What the server has answered leaves the connection usable, an error as well.
        if matches!(rows, Ok(_) | Err(sqlx::Error::Database(_))) {
            *place = Some(connection);
        }
        rows
    }

    /// The kept connection if it still answers, else a new one.
    async fn connected(
        &self,
        kept: Option<PgConnection>,
        within: Duration,
    ) -> Result<PgConnection, sqlx::Error> {
        if let Some(mut kept) = kept
            && let Ok(Ok(())) = timeout(within, kept.ping()).await
        {
            return Ok(kept);
        }
        let options = self.pool.connect_options();
        timeout(within, PgConnection::connect_with(&options))
            .await
            .unwrap_or_else(|_elapsed| Err(no_answer(within)))
    }
}

async fn run(
    connection: &mut PgConnection,
    explicit: bool,
    query: Query<'_, Postgres, PgArguments>,
) -> Result<Vec<PgRow>, sqlx::Error> {
    if !explicit {
        return query.fetch_all(connection).await;
    }
    let begun = connection.begin_with(AssertSqlSafe(BEGIN)).await;
    let mut transaction = begun.map_err(begin_error)?;
    let rows = query.fetch_all(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(rows)
}
