//! Finds out whether a pooler between us and PostgreSQL mixes up prepared statements.

use std::time::Duration;

use sqlx::{Connection, PgConnection, postgres::PgConnectOptions};
use tokio::time::timeout;
use whizbang::{StoreError, StoreErrorKind, store::StoreResult};

use crate::{
    error::store_error,
    store::{PgStore, no_answer},
};

const DOING: &str = "test for a pooler that mixes up prepared statements";

/// What the two clients ask, and the answers that are theirs. On a fresh connection the driver gives
/// both statements the same name.
const QUESTIONS: [(&str, i32); 2] = [("SELECT 1 AS probe", 1), ("SELECT 2 AS probe", 2)];

/// Who asks, in turn. A pooler that hands out the server that was used last gives the second client
/// the server of the first; one that goes round gives a client that asks twice another server.
const TURNS: [usize; 10] = [0, 1, 1, 0, 0, 1, 0, 1, 1, 0];

/// Longest time for the whole test.
const WITHIN: Duration = Duration::from_secs(10);

/// A statement of this name exists already; there is none of this name; the protocol was violated.
const MIXED_UP: [&str; 3] = ["42P05", "26000", "08P01"];

impl PgStore {
    /// Refuses a pooler that needs [`PgStore::pooler`] and was not given it. With it, statements are
    /// unnamed and inside transactions, which works everywhere.
    pub(crate) async fn check_pooler(&self) -> StoreResult<()> {
        if self.inner.pooler {
            return Ok(());
        }
        let options = self.inner.pool.connect_options();
        let probed = timeout(WITHIN, keeps_statements_apart(&options)).await;
        let apart = probed.unwrap_or_else(|_elapsed| Err(no_answer(WITHIN)));
        if apart.map_err(store_error(DOING))? {
            return Ok(());
        }
        Err(StoreError::message(
            StoreErrorKind::Setup,
            "a pooler between the service and PostgreSQL mixes up the prepared statements of its clients; set `max_prepared_statements` (PgBouncer 1.21 or later) or session pooling there, or `PgStore::pooler(true)` here",
        ))
    }
}

async fn keeps_statements_apart(options: &PgConnectOptions) -> Result<bool, sqlx::Error> {
    let mut clients = [
        PgConnection::connect_with(options).await?,
        PgConnection::connect_with(options).await?,
    ];
    for turn in TURNS {
        let (Some(client), Some((question, own))) = (clients.get_mut(turn), QUESTIONS.get(turn))
        else {
            continue;
        };
        match sqlx::query_scalar::<_, i32>(*question)
            .fetch_one(client)
            .await
        {
            Ok(answer) if answer == *own => {}
            Ok(_) => return Ok(false),
            Err(error) if is_mixed_up(&error) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    let [one, other] = clients;
    one.close().await?;
    other.close().await?;
    Ok(true)
}

fn is_mixed_up(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .and_then(|error| error.code())
        .is_some_and(|code| MIXED_UP.contains(&&*code))
}
