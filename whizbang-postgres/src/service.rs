//! The service as a whole: registration, heartbeats, housekeeping.

use std::{sync::atomic::Ordering, time::Duration};

use chrono::{DateTime, Utc};
use sqlx::Row;
use uuid::Uuid;
use whizbang::{
    StoreError, StoreErrorKind,
    store::{Heartbeat, Instance, MaintenanceTask, StoreResult, Subscription},
};

use crate::{
    error::store_error,
    migrate,
    store::{MAINTENANCE_WITHIN, PgStore, interval},
};

/// Rows of one maintenance task in one transaction.
const MAINTENANCE_BATCH: i32 = 10_000;

/// One line of the status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusLine {
    /// What is counted.
    pub what: String,
    /// How many.
    pub count: i64,
    /// Since when the oldest of them waits.
    pub oldest: Option<DateTime<Utc>>,
}

/// Subscriptions as parallel arrays.
struct Lines {
    handlers: Vec<String>,
    types: Vec<String>,
    lanes: Vec<String>,
}

impl Lines {
    fn new(subscriptions: &[Subscription]) -> Self {
        Self {
            handlers: subscriptions
                .iter()
                .map(|line| line.handler.clone())
                .collect(),
            types: subscriptions
                .iter()
                .map(|line| line.message_type.clone())
                .collect(),
            lanes: subscriptions.iter().map(|line| line.lane.clone()).collect(),
        }
    }
}

impl PgStore {
    pub(crate) async fn register_instance(
        &self,
        instance: &Instance,
        subscriptions: &[Subscription],
    ) -> StoreResult<()> {
        // First, since any other statement could be another client's.
        self.check_pooler().await?;
        self.check_session().await?;
        migrate::check_version(self).await?;
        let lines = Lines::new(subscriptions);
        let query = self
            .query(&self.calls().register)
            .bind(instance.id)
            .bind(&instance.service)
            .bind(&instance.host)
            .bind(lines.handlers)
            .bind(lines.types)
            .bind(lines.lanes);
        let owner: String = self.value("register the service", query).await?;
        if owner == "ok" {
            return Ok(());
        }
        Err(self.foreign(&owner, &instance.service))
    }

    /// What [`register_instance`](Self::register_instance) would refuse, without writing anything.
    pub(crate) async fn check_setup_for(&self, service: &str) -> StoreResult<()> {
        self.check_pooler().await?;
        self.check_session().await?;
        migrate::check_version(self).await?;
        let query = self.query(&self.calls().service_name);
        let owner: Option<String> = self.value("read the name of the service", query).await?;
        match owner {
            Some(owner) if owner != service => Err(self.foreign(&owner, service)),
            _ => Ok(()),
        }
    }

    fn foreign(&self, owner: &str, service: &str) -> StoreError {
        StoreError::message(
            StoreErrorKind::Setup,
            format!(
                "schema `{}` belongs to service `{owner}`, not to `{service}`; give each service a schema of its own with `PgStore::schema`, or rename the service with `PgStore::rename_service`",
                self.inner.schema
            ),
        )
    }

    /// Looks at the session's defaults: what does not suit us is set in every transaction.
    async fn check_session(&self) -> StoreResult<()> {
        const DOING: &str = "read the session's settings";
        let query = sqlx::query(
            "SELECT current_setting('default_transaction_isolation'), current_setting('synchronous_commit'), current_setting('default_transaction_read_only'), pg_is_in_recovery()",
        );
        let rows = self.rows(DOING, query).await?;
        let row = rows
            .first()
            .ok_or(sqlx::Error::RowNotFound)
            .map_err(store_error(DOING))?;
        let read = || -> Result<(String, String, String, bool), sqlx::Error> {
            Ok((
                row.try_get(0)?,
                row.try_get(1)?,
                row.try_get(2)?,
                row.try_get(3)?,
            ))
        };
        let (isolation, synchronous, read_only, standby) = read().map_err(store_error(DOING))?;
        if standby {
            return Err(StoreError::message(
                StoreErrorKind::Setup,
                "the server is a standby and read-only; connect to the primary",
            ));
        }
        if synchronous == "off" {
            tracing::warn!(
                "synchronous_commit is off: a crash of the server could lose committed messages; transactions of the framework set it on, your own should do the same"
            );
        }
        let suits = isolation == "read committed" && synchronous != "off" && read_only == "off";
        self.inner
            .explicit
            .store(self.inner.pooler || !suits, Ordering::Relaxed);
        Ok(())
    }

    /// Hands the schema over to a service of another name; `false` if it did not belong to `from`.
    /// Stop the service first: outbox rows for its own handlers are renamed as well.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn rename_service(&self, from: &str, to: &str) -> StoreResult<bool> {
        let query = self.query(&self.calls().rename).bind(from).bind(to);
        self.value("rename the service", query).await
    }

    /// What waits, what is leased and what died, as `wh_status()` counts it: cheap enough to look
    /// at often.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn status(&self) -> StoreResult<Vec<StatusLine>> {
        const DOING: &str = "read the status";
        let query = self.query(&self.calls().status);
        let rows = self.rows(DOING, query).await?;
        rows.iter()
            .map(|row| {
                Ok(StatusLine {
                    what: row.try_get("what")?,
                    count: row.try_get("count")?,
                    oldest: row.try_get("oldest")?,
                })
            })
            .collect::<Result<_, sqlx::Error>>()
            .map_err(store_error(DOING))
    }

    pub(crate) async fn record_heartbeat(
        &self,
        instance: &Instance,
        subscriptions: &[Subscription],
        dead_after: Duration,
        lease: Duration,
    ) -> StoreResult<Heartbeat> {
        const DOING: &str = "record a heartbeat";
        let lines = Lines::new(subscriptions);
        let query = self
            .query(&self.calls().heartbeat)
            .bind(instance.id)
            .bind(interval(dead_after))
            .bind(interval(lease))
            .bind(lines.handlers)
            .bind(lines.types)
            .bind(lines.lanes);
        let rows = self.control_rows(DOING, query).await?;
        let row = rows
            .first()
            .ok_or(sqlx::Error::RowNotFound)
            .map_err(store_error(DOING))?;
        let read = || -> Result<Heartbeat, sqlx::Error> {
            Ok(Heartbeat {
                known: row.try_get("known")?,
                dead_peers: row.try_get::<i32, _>("dead_peers")?.unsigned_abs(),
                released: row.try_get::<i64, _>("released")?.unsigned_abs(),
            })
        };
        read().map_err(store_error(DOING))
    }

    pub(crate) async fn deregister_instance(
        &self,
        instance: Uuid,
        lease: Duration,
    ) -> StoreResult<()> {
        let query = self
            .query(&self.calls().deregister)
            .bind(instance)
            .bind(interval(lease));
        self.control_rows("deregister the instance", query).await?;
        Ok(())
    }

    pub(crate) async fn release_leases_under(
        &self,
        instance: Uuid,
        tokens: &[Uuid],
        lease: Duration,
    ) -> StoreResult<u64> {
        let query = self
            .query(&self.calls().release_leases)
            .bind(vec![instance])
            .bind(tokens)
            .bind(interval(lease));
        let released: i64 = self.value("give leases back", query).await?;
        Ok(released.unsigned_abs())
    }

    pub(crate) async fn perform_maintenance(&self) -> StoreResult<Vec<MaintenanceTask>> {
        const DOING: &str = "perform maintenance";
        // Committed before anything is purged: see the function's header.
        let horizon = self.query(&self.calls().advance_horizon);
        self.rows("advance the deduplication horizon", horizon)
            .await?;
        let query = self.query(&self.calls().maintain).bind(MAINTENANCE_BATCH);
        let rows = self.rows_within(MAINTENANCE_WITHIN, DOING, query).await?;
        rows.iter()
            .map(|row| {
                Ok(MaintenanceTask {
                    task: row.try_get("task")?,
                    affected: row.try_get::<i64, _>("affected")?.unsigned_abs(),
                })
            })
            .collect::<Result<_, sqlx::Error>>()
            .map_err(store_error(DOING))
    }
}
