//! Writing outbox rows, and taking them to where they go.

use std::{collections::HashSet, sync::PoisonError, time::Duration};

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, Row};
use tokio::time::Instant;
use uuid::Uuid;
use whizbang::store::{
    HandOver, LocalDelivery, OutboxDraft, OutboxRow, Refusal, Schedule, StoreResult,
};

use crate::{
    error::store_error,
    inbox::{Offer, limit, report},
    rows,
    store::{PgStore, interval},
    watermark::Running,
};

/// How often a delivery looks from the very start, for rows that a slow commit made visible late.
const SWEEP: Duration = Duration::from_secs(1);

impl PgStore {
    /// Runs in the caller's transaction: one statement, no lock and no notification.
    pub(crate) async fn store_outbox_messages(
        &self,
        connection: &mut PgConnection,
        drafts: &[OutboxDraft],
    ) -> StoreResult<Vec<bool>> {
        const DOING: &str = "write to the outbox";
        let ids = |value: fn(&OutboxDraft) -> Option<Uuid>| -> Vec<Option<Uuid>> {
            drafts.iter().map(value).collect()
        };
        let texts = |value: fn(&OutboxDraft) -> String| -> Vec<String> {
            drafts.iter().map(value).collect()
        };
        let commands: Vec<_> = drafts
            .iter()
            .map(|draft| draft.envelope.kind.is_command())
            .collect();
        let (times, delays): (Vec<_>, Vec<_>) =
            drafts.iter().map(|draft| schedule(draft.when)).unzip();
        let query = self
            .query(&self.calls().store_outbox)
            .persistent(!self.inner.pooler)
            .bind(ids(|draft| Some(draft.envelope.id)))
            .bind(texts(|draft| draft.destination.clone()))
            .bind(texts(|draft| draft.envelope.message_type.clone()))
            .bind(commands)
            .bind(texts(|draft| draft.envelope.payload.as_str().to_owned()))
            .bind(texts(|draft| draft.envelope.headers.to_json()))
            .bind(ids(|draft| {
                draft.envelope.stream.as_ref().map(|key| key.id())
            }))
            .bind(ids(|draft| draft.envelope.correlation_id))
            .bind(ids(|draft| draft.envelope.causation_id))
            .bind(times)
            .bind(
                delays
                    .into_iter()
                    .map(|delay| delay.map(interval))
                    .collect::<Vec<_>>(),
            );
        let rows = query
            .fetch_all(connection)
            .await
            .map_err(store_error(DOING))?;
        let mut new = HashSet::new();
        for row in &rows {
            let read = || -> Result<(Uuid, String, bool), sqlx::Error> {
                Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))
            };
            let (id, destination, is_new) = read().map_err(store_error(DOING))?;
            if is_new {
                new.insert((id, destination));
            }
        }
        Ok(drafts
            .iter()
            .map(|draft| new.contains(&(draft.envelope.id, draft.destination.clone())))
            .collect())
    }

    pub(crate) async fn deliver_outbox_locally(
        &self,
        destination: &str,
        rows: usize,
        hand_over: Option<&HandOver>,
    ) -> StoreResult<LocalDelivery> {
        const DOING: &str = "move messages from the outbox to the inbox";
        let offer = Offer::new(hand_over);
        let query = self
            .query(&self.calls().deliver_locally)
            .bind(destination)
            .bind(limit(rows))
            .bind(offer.token)
            .bind(offer.instance)
            .bind(interval(offer.lease))
            .bind(offer.handlers)
            .bind(offer.limits)
            .bind(self.deliver_from(destination));
        let rows = self.rows(DOING, query).await?;
        let report = report(&rows, offer.token, rows::delivered).map_err(store_error(DOING))?;
        let marks = &self.inner.delivered_up_to;
        let mut moved = HashSet::new();
        for row in &rows {
            let read = || -> Result<(Uuid, i64, Running), sqlx::Error> {
                let running = Running {
                    oldest: row.try_get("oldest_running")?,
                    next: row.try_get("next_running")?,
                };
                let sequence = row.try_get("outbox_sequence")?;
                Ok((row.try_get("message_id")?, sequence, running))
            };
            let (id, sequence, running) = read().map_err(store_error(DOING))?;
            marks.reached(&destination.to_owned(), sequence, running);
            moved.insert(id);
        }
        Ok(LocalDelivery {
            moved: moved.len() as u64,
            report,
        })
    }

    /// The sequence to start from: the low watermark, and now and then the very start.
    fn deliver_from(&self, destination: &str) -> i64 {
        let mut swept = self
            .inner
            .swept
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if swept.is_none_or(|at| at.elapsed() >= SWEEP) {
            *swept = Some(Instant::now());
            return 0;
        }
        let mark = self.inner.delivered_up_to.get(&destination.to_owned());
        mark.unwrap_or(0)
    }

    pub(crate) async fn claim_outbox_rows(
        &self,
        destination: &str,
        rows: usize,
        lease: Duration,
        token: Uuid,
        instance: Uuid,
    ) -> StoreResult<Vec<OutboxRow>> {
        const DOING: &str = "claim outbox rows";
        let query = self
            .query(&self.calls().claim_outbox)
            .bind(destination)
            .bind(limit(rows))
            .bind(interval(lease))
            .bind(token)
            .bind(instance);
        let rows = self.rows(DOING, query).await?;
        rows.iter()
            .map(rows::outbox)
            .collect::<Result<_, _>>()
            .map_err(store_error(DOING))
    }

    pub(crate) async fn complete_outbox_published(
        &self,
        destination: &str,
        token: Uuid,
        ids: &[Uuid],
    ) -> StoreResult<u64> {
        let query = self
            .query(&self.calls().complete_outbox)
            .bind(ids)
            .bind(destination)
            .bind(token);
        let removed: i64 = self.value("remove relayed messages", query).await?;
        Ok(removed.unsigned_abs())
    }

    pub(crate) async fn report_outbox_failures(
        &self,
        destination: &str,
        token: Uuid,
        refusals: &[Refusal],
    ) -> StoreResult<bool> {
        const DOING: &str = "report refused messages";
        let query = self
            .query(&self.calls().report_outbox)
            .bind(
                refusals
                    .iter()
                    .map(|refusal| refusal.message_id)
                    .collect::<Vec<_>>(),
            )
            .bind(destination)
            .bind(
                refusals
                    .iter()
                    .map(|refusal| match refusal.retry {
                        Some(_) => "retry",
                        None => "dead",
                    })
                    .collect::<Vec<_>>(),
            )
            .bind(
                refusals
                    .iter()
                    .map(|refusal| interval(refusal.retry.unwrap_or_default()))
                    .collect::<Vec<_>>(),
            )
            .bind(
                refusals
                    .iter()
                    .map(|refusal| refusal.error.clone())
                    .collect::<Vec<_>>(),
            )
            .bind(token);
        let rows = self.rows(DOING, query).await?;
        let lost = |row: &sqlx::postgres::PgRow| {
            let outcome: Result<String, _> = row.try_get("outcome");
            outcome.map(|outcome| outcome == "lost")
        };
        let outcomes: Result<Vec<_>, _> = rows.iter().map(lost).collect();
        Ok(!outcomes.map_err(store_error(DOING))?.contains(&true))
    }

    pub(crate) async fn release_outbox_relay(
        &self,
        destination: &str,
        instance: Uuid,
    ) -> StoreResult<()> {
        let query = self
            .query(&self.calls().release_relay)
            .bind(instance)
            .bind(destination);
        self.rows("give the relay back", query).await?;
        Ok(())
    }

    pub(crate) async fn cancel_scheduled_messages(&self, ids: &[Uuid]) -> StoreResult<u64> {
        let query = self.query(&self.calls().cancel).bind(ids);
        let cancelled: i64 = self.value("cancel scheduled messages", query).await?;
        Ok(cancelled.unsigned_abs())
    }
}

fn schedule(when: Schedule) -> (Option<DateTime<Utc>>, Option<Duration>) {
    match when {
        Schedule::Now => (None, None),
        Schedule::After(delay) => (None, Some(delay)),
        Schedule::At(time) => (Some(time), None),
    }
}
