//! Connections and the handler's transaction.

use std::time::Duration;

use sqlx::{
    AssertSqlSafe, Connection, PgConnection, Postgres, Row, Transaction, pool::PoolConnection,
};
use uuid::Uuid;
use whizbang::{
    StoreError, StoreErrorKind,
    store::{
        CommandAnswer, CommandRun, CommandState, Completion, Isolation, Lease, StoreResult,
        TransactionOptions,
    },
};

use crate::{
    error::{begin_error, kind_of, store_error},
    store::{PgStore, no_answer},
};

/// Time beyond the handler's timeout before the server ends an idle transaction by itself: the
/// runtime should be the first to notice.
const IDLE_MARGIN: Duration = Duration::from_secs(5);

/// Opens a handler's transaction in one round trip.
pub(crate) async fn begin<'s>(
    session: &'s mut PoolConnection<Postgres>,
    options: &TransactionOptions,
    within: Duration,
) -> StoreResult<Transaction<'s, Postgres>> {
    let statement = AssertSqlSafe(begin_statement(options));
    tokio::time::timeout(within, session.begin_with(statement))
        .await
        .unwrap_or_else(|_elapsed| Err(no_answer(within)))
        .map_err(begin_error)
        .map_err(store_error("begin a transaction"))
}

/// Holds nothing but numbers and a UUID, so there is nothing to escape.
fn begin_statement(options: &TransactionOptions) -> String {
    let isolation = match options.isolation {
        Isolation::ReadCommitted => "READ COMMITTED",
        Isolation::RepeatableRead => "REPEATABLE READ",
        Isolation::Serializable => "SERIALIZABLE",
    };
    let fence = options.fence;
    let mut statement = format!(
        "BEGIN ISOLATION LEVEL {isolation} READ WRITE; SET LOCAL synchronous_commit TO on; SET LOCAL whizbang.fence TO '{fence}'"
    );
    if !options.timeout.is_zero() {
        let timeout = milliseconds(options.timeout);
        let idle = milliseconds(options.timeout.saturating_add(IDLE_MARGIN));
        statement.push_str(&format!("; SET LOCAL statement_timeout TO {timeout}; SET LOCAL idle_in_transaction_session_timeout TO {idle}"));
    }
    statement
}

/// PostgreSQL takes these settings as 32-bit milliseconds, where zero means "never".
fn milliseconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis())
        .unwrap_or(i32::MAX)
        .max(1)
}

pub(crate) async fn nested<'t>(
    transaction: &'t mut Transaction<'_, Postgres>,
) -> StoreResult<Transaction<'t, Postgres>> {
    transaction
        .begin()
        .await
        .map_err(store_error("set a savepoint"))
}

pub(crate) async fn commit(transaction: Transaction<'_, Postgres>) -> StoreResult<()> {
    transaction.commit().await.map_err(|error| {
        let mut mapped = store_error("commit")(error);
        // Whatever was lost here was lost after COMMIT had been sent.
        if mapped.kind == StoreErrorKind::Unavailable {
            mapped.kind = StoreErrorKind::CommitUnknown;
        }
        mapped
    })
}

pub(crate) async fn rollback(transaction: Transaction<'_, Postgres>) -> StoreResult<()> {
    transaction
        .rollback()
        .await
        .map_err(store_error("roll back"))
}

/// The pool looks at what comes back, and waits for the answer without end. So this looks first.
pub(crate) fn give_back(mut session: PoolConnection<Postgres>, within: Duration) {
    tokio::spawn(async move {
        match tokio::time::timeout(within, session.ping()).await {
            Ok(Ok(())) => drop(session),
            _ => discard(session),
        }
    });
}

/// Closes the socket without waiting for a statement that may be running; the pool gets a free
/// place at once, the server rolls back when it notices or when its timeout ends the statement.
pub(crate) fn discard(session: PoolConnection<Postgres>) {
    drop(session.detach());
}

/// Whether a transaction is open, however it was begun. The server is asked, since the driver's own
/// count knows nothing of a plain `BEGIN` or `COMMIT`: in a statement outside any transaction both
/// times are the same. The simple protocol is needed for that.
pub(crate) async fn in_transaction(connection: &mut PgConnection) -> StoreResult<bool> {
    let query = sqlx::raw_sql("SELECT now() = statement_timestamp()");
    let asked = sqlx::Executor::fetch_one(connection, query).await;
    match asked {
        Ok(row) => {
            let alone: bool = row
                .try_get(0)
                .map_err(store_error("look for a transaction"))?;
            Ok(!alone)
        }
        // A failed transaction is an open one.
        Err(error) if kind_of(&error) == StoreErrorKind::Aborted => Ok(true),
        Err(error) => Err(store_error("look for a transaction")(error)),
    }
}

impl PgStore {
    pub(crate) async fn open_session(&self) -> StoreResult<PoolConnection<Postgres>> {
        self.inner
            .pool
            .acquire()
            .await
            .map_err(store_error("take a connection from the pool"))
    }

    pub(crate) async fn complete_inbox_message(
        &self,
        connection: &mut PgConnection,
        lease: &Lease,
        last: bool,
    ) -> StoreResult<Completion> {
        const DOING: &str = "complete a message";
        let answer: String = self
            .scalar(&self.calls().complete)
            .bind(lease.message_id)
            .bind(&lease.handler)
            .bind(&lease.lane)
            .bind(lease.stream_id)
            .bind(lease.token)
            .bind(last)
            .fetch_one(connection)
            .await
            .map_err(store_error(DOING))?;
        match answer.as_str() {
            "done" => Ok(Completion::Done),
            "more" => Ok(Completion::More),
            "lost" => Ok(Completion::Lost),
            "unfenced" => Ok(Completion::Unfenced),
            other => Err(unexpected(DOING, other)),
        }
    }

    pub(crate) async fn is_fenced(
        &self,
        connection: &mut PgConnection,
        fence: Uuid,
    ) -> StoreResult<bool> {
        self.scalar(&self.calls().fenced)
            .bind(fence.to_string())
            .fetch_one(connection)
            .await
            .map_err(store_error("check the transaction"))
    }

    pub(crate) async fn begin_command_run(
        &self,
        connection: &mut PgConnection,
        run: &CommandRun,
    ) -> StoreResult<CommandState> {
        const DOING: &str = "look a command's key up";
        let query = self
            .query(&self.calls().begin_command)
            .persistent(!self.inner.pooler)
            .bind(&run.scope)
            .bind(run.key.as_str())
            .bind(run.fingerprint.as_slice())
            .bind(&run.version);
        let row = query
            .fetch_one(connection)
            .await
            .map_err(store_error(DOING))?;
        let state: String = row.try_get("state").map_err(store_error(DOING))?;
        let fingerprint: Option<Vec<u8>> =
            row.try_get("fingerprint").map_err(store_error(DOING))?;
        let result: Option<String> = row.try_get("result").map_err(store_error(DOING))?;
        let error: Option<String> = row.try_get("error").map_err(store_error(DOING))?;
        match state.as_str() {
            "fresh" => Ok(CommandState::Fresh),
            "done" => Ok(CommandState::Done(match error {
                Some(error) => CommandAnswer::Error(error),
                None => CommandAnswer::Reply(result),
            })),
            "reused" => Ok(CommandState::Reused {
                stored: fingerprint.unwrap_or_default(),
            }),
            "busy" => Ok(CommandState::Busy),
            "isolation" => Ok(CommandState::Isolated),
            "unfinished" => Ok(CommandState::Unfinished),
            other => Err(unexpected(DOING, other)),
        }
    }

    pub(crate) async fn finish_command_run(
        &self,
        connection: &mut PgConnection,
        run: &CommandRun,
        answer: &CommandAnswer,
    ) -> StoreResult<bool> {
        const DOING: &str = "record what a command came to";
        let (reply, error) = match answer {
            CommandAnswer::Reply(reply) => (reply.as_deref(), None),
            CommandAnswer::Error(error) => (None, Some(error.as_str())),
        };
        let recorded: String = self
            .scalar(&self.calls().finish_command)
            .bind(&run.scope)
            .bind(run.key.as_str())
            .bind(reply)
            .bind(error)
            .fetch_one(connection)
            .await
            .map_err(store_error(DOING))?;
        match recorded.as_str() {
            "recorded" => Ok(true),
            "unfenced" => Ok(false),
            other => Err(unexpected(DOING, other)),
        }
    }

    pub(crate) fn scalar<T>(
        &self,
        call: &crate::calls::Call,
    ) -> sqlx::query::QueryScalar<'static, Postgres, T, sqlx::postgres::PgArguments>
    where
        (T,): for<'r> sqlx::FromRow<'r, sqlx::postgres::PgRow>,
    {
        sqlx::query_scalar(call.sql()).persistent(!self.inner.pooler)
    }
}

/// The functions in the database answered something this version does not know.
pub(crate) fn unexpected(doing: &str, answer: &str) -> StoreError {
    StoreError::message(
        StoreErrorKind::Setup,
        format!(
            "failed to {doing}: the database answered `{answer}`; its functions are of another version, run `whizbang_postgres::migrate`"
        ),
    )
}
