//! Storing, claiming and completing inbox rows.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use chrono::{DateTime, Utc};
use sqlx::{Row, postgres::PgRow};
use uuid::Uuid;
use whizbang::{
    Envelope,
    store::{
        Action, ClaimRequest, HandOver, Lease, Poison, Report, StoreReport, StoreResult, Work,
    },
};

use crate::{
    error::store_error,
    rows,
    store::{PgStore, interval},
    watermark::Running,
};

/// What a hand-over looks like to the functions: five parameters.
pub(crate) struct Offer {
    pub(crate) token: Option<Uuid>,
    pub(crate) instance: Option<Uuid>,
    pub(crate) lease: Duration,
    pub(crate) handlers: Vec<String>,
    pub(crate) limits: Vec<i32>,
}

impl Offer {
    pub(crate) fn new(hand_over: Option<&HandOver>) -> Self {
        let room = hand_over.map(|offer| &offer.room);
        Self {
            token: hand_over.map(|offer| offer.token),
            instance: hand_over.map(|offer| offer.instance),
            lease: hand_over.map_or(Duration::ZERO, |offer| offer.lease),
            handlers: room
                .into_iter()
                .flatten()
                .map(|room| room.handler.clone())
                .collect(),
            limits: room
                .into_iter()
                .flatten()
                .map(|room| limit(room.limit))
                .collect(),
        }
    }
}

pub(crate) fn limit(rows: usize) -> i32 {
    i32::try_from(rows).unwrap_or(i32::MAX)
}

/// Leases as parallel arrays.
struct LeaseColumns {
    ids: Vec<Uuid>,
    handlers: Vec<String>,
    lanes: Vec<String>,
    streams: Vec<Option<Uuid>>,
    tokens: Vec<Uuid>,
}

impl LeaseColumns {
    fn new<'a>(leases: impl Iterator<Item = &'a Lease> + Clone) -> Self {
        Self {
            ids: leases.clone().map(|lease| lease.message_id).collect(),
            handlers: leases.clone().map(|lease| lease.handler.clone()).collect(),
            lanes: leases.clone().map(|lease| lease.lane.clone()).collect(),
            streams: leases.clone().map(|lease| lease.stream_id).collect(),
            tokens: leases.map(|lease| lease.token).collect(),
        }
    }
}

impl PgStore {
    pub(crate) async fn store_inbox_messages(
        &self,
        envelopes: &[Envelope],
        hand_over: Option<&HandOver>,
    ) -> StoreResult<StoreReport> {
        const DOING: &str = "store messages in the inbox";
        if envelopes.is_empty() {
            return Ok(StoreReport::default());
        }
        let offer = Offer::new(hand_over);
        let column = |value: fn(&Envelope) -> Option<Uuid>| -> Vec<Option<Uuid>> {
            envelopes.iter().map(value).collect()
        };
        let texts = |value: fn(&Envelope) -> String| -> Vec<String> {
            envelopes.iter().map(value).collect()
        };
        let query = self
            .query(&self.calls().store_inbox)
            .bind(column(|envelope| Some(envelope.id)))
            .bind(texts(|envelope| envelope.message_type.clone()))
            .bind(commands(envelopes))
            .bind(texts(|envelope| envelope.payload.as_str().to_owned()))
            .bind(texts(|envelope| envelope.headers.to_json()))
            .bind(column(|envelope| {
                envelope.stream.as_ref().map(|key| key.id())
            }))
            .bind(column(|envelope| envelope.correlation_id))
            .bind(column(|envelope| envelope.causation_id))
            .bind(fingerprints(envelopes))
            .bind(births(envelopes))
            .bind(offer.token)
            .bind(offer.instance)
            .bind(interval(offer.lease))
            .bind(offer.handlers)
            .bind(offer.limits);
        let rows = self.rows(DOING, query).await?;
        let by_id: HashMap<Uuid, &Envelope> = envelopes
            .iter()
            .rev()
            .map(|envelope| (envelope.id, envelope))
            .collect();
        report(&rows, offer.token, |row, token| {
            let id: Uuid = row.try_get("message_id")?;
            match by_id.get(&id) {
                Some(envelope) => rows::handed_over(row, token, envelope),
                None => Err(sqlx::Error::RowNotFound),
            }
        })
        .map_err(store_error(DOING))
    }

    pub(crate) async fn store_dead_letters(&self, poison: &[Poison]) -> StoreResult<()> {
        let query = self
            .query(&self.calls().store_poison)
            .bind("transport")
            .bind(poison.iter().map(|one| one.message_id).collect::<Vec<_>>())
            .bind(
                poison
                    .iter()
                    .map(|one| one.message_type.clone())
                    .collect::<Vec<_>>(),
            )
            .bind(poison.iter().map(|one| one.raw.clone()).collect::<Vec<_>>())
            .bind(
                poison
                    .iter()
                    .map(|one| one.headers.to_json())
                    .collect::<Vec<_>>(),
            )
            .bind(
                poison
                    .iter()
                    .map(|one| one.reason.to_owned())
                    .collect::<Vec<_>>(),
            )
            .bind(
                poison
                    .iter()
                    .map(|one| one.error.clone())
                    .collect::<Vec<_>>(),
            );
        let _stored: i64 = self.value("store dead letters", query).await?;
        Ok(())
    }

    pub(crate) async fn claim_work(&self, request: &ClaimRequest) -> StoreResult<Vec<Work>> {
        const DOING: &str = "claim work";
        let room = &request.room;
        let marks = &self.inner.claimed_up_to;
        let after: Vec<Option<DateTime<Utc>>> = room
            .iter()
            .map(|room| match request.rescan {
                true => None,
                false => self.claim_from(&room.handler),
            })
            .collect();
        let query = self
            .query(&self.calls().claim)
            .bind(
                room.iter()
                    .map(|room| room.handler.clone())
                    .collect::<Vec<_>>(),
            )
            .bind(
                room.iter()
                    .map(|room| limit(room.limit))
                    .collect::<Vec<_>>(),
            )
            .bind(
                room.iter()
                    .map(|room| room.lane.clone())
                    .collect::<Vec<_>>(),
            )
            .bind(limit(request.limit))
            .bind(limit(request.run))
            .bind(interval(request.lease))
            .bind(request.token)
            .bind(request.instance)
            .bind(after);
        let rows = self.rows(DOING, query).await?;
        let mut works = Vec::with_capacity(rows.len());
        for row in &rows {
            let work = rows::claimed(row, request.token).map_err(store_error(DOING))?;
            let was_due = row.try_get("was_due_at").map_err(store_error(DOING))?;
            let kind = (work.lease.handler.clone(), work.lease.stream_id.is_some());
            marks.reached(&kind, was_due, Running::default());
            works.push(work);
        }
        Ok(works)
    }

    /// Where to look for rows of a handler: rows without a stream and streams have a mark each, since
    /// either may be far behind the other.
    fn claim_from(&self, handler: &str) -> Option<DateTime<Utc>> {
        let marks = &self.inner.claimed_up_to;
        let mark = |ordered| marks.get(&(handler.to_owned(), ordered));
        mark(false).into_iter().chain(mark(true)).min()
    }

    pub(crate) async fn next_rows(
        &self,
        held: &Lease,
        lease: Duration,
        run: usize,
        handlers: &[String],
    ) -> StoreResult<Vec<Work>> {
        const DOING: &str = "take the next messages of a stream";
        let query = self
            .query(&self.calls().next_in_stream)
            .bind(&held.lane)
            .bind(held.stream_id)
            .bind(held.token)
            .bind(interval(lease))
            .bind(limit(run))
            .bind(handlers);
        let rows = self.rows(DOING, query).await?;
        rows.iter()
            .map(|row| rows::claimed(row, held.token))
            .collect::<Result<_, _>>()
            .map_err(store_error(DOING))
    }

    pub(crate) async fn close_held_streams(&self, held: &[Lease]) -> StoreResult<()> {
        let columns = LeaseColumns::new(held.iter());
        let query = self
            .query(&self.calls().close_streams)
            .bind(columns.lanes)
            .bind(columns.streams)
            .bind(columns.tokens);
        self.rows("give streams back", query).await?;
        Ok(())
    }

    pub(crate) async fn report_failures(&self, reports: &[Report]) -> StoreResult<Vec<bool>> {
        const DOING: &str = "report a failure";
        let columns = LeaseColumns::new(reports.iter().map(|report| &report.lease));
        let actions: Vec<_> = reports.iter().map(|report| columns_of(report)).collect();
        let query = self
            .query(&self.calls().report)
            .bind(columns.ids)
            .bind(columns.handlers)
            .bind(columns.lanes)
            .bind(columns.streams)
            .bind(columns.tokens)
            .bind(actions.iter().map(|action| action.0).collect::<Vec<_>>())
            .bind(
                actions
                    .iter()
                    .map(|action| interval(action.1))
                    .collect::<Vec<_>>(),
            )
            .bind(actions.iter().map(|action| action.2).collect::<Vec<_>>())
            .bind(
                reports
                    .iter()
                    .map(|report| report.error.clone())
                    .collect::<Vec<_>>(),
            )
            .bind(actions.iter().map(|action| action.3).collect::<Vec<_>>());
        let rows = self.rows(DOING, query).await?;
        let held = keys_where(&rows, |row| {
            Ok(row.try_get::<String, _>("outcome")? != "lost")
        })
        .map_err(store_error(DOING))?;
        Ok(reports
            .iter()
            .map(|report| held.contains(&key_of(&report.lease)))
            .collect())
    }

    pub(crate) async fn complete_inbox_messages(&self, leases: &[Lease]) -> StoreResult<Vec<bool>> {
        const DOING: &str = "complete messages";
        let columns = LeaseColumns::new(leases.iter());
        let query = self
            .query(&self.calls().complete_batch)
            .bind(columns.ids)
            .bind(columns.handlers)
            .bind(columns.lanes)
            .bind(columns.streams)
            .bind(columns.tokens);
        let rows = self.rows(DOING, query).await?;
        let held = keys_where(&rows, |row| row.try_get("completed")).map_err(store_error(DOING))?;
        Ok(leases
            .iter()
            .map(|lease| held.contains(&key_of(lease)))
            .collect())
    }

    pub(crate) async fn mark_row_started(&self, lease: &Lease) -> StoreResult<bool> {
        let query = self
            .query(&self.calls().mark_started)
            .bind(lease.message_id)
            .bind(&lease.handler)
            .bind(&lease.lane)
            .bind(lease.stream_id)
            .bind(lease.token);
        self.value("note that a message is about to run", query)
            .await
    }

    pub(crate) async fn renew_leases(
        &self,
        held: &[Lease],
        lease: Duration,
    ) -> StoreResult<Vec<Lease>> {
        const DOING: &str = "renew leases";
        let single = LeaseColumns::new(held.iter().filter(|lease| lease.stream_id.is_none()));
        let ordered = LeaseColumns::new(held.iter().filter(|lease| lease.stream_id.is_some()));
        let query = self
            .query(&self.calls().renew)
            .bind(single.ids)
            .bind(single.handlers)
            .bind(single.tokens)
            .bind(ordered.lanes)
            .bind(ordered.streams)
            .bind(ordered.tokens)
            .bind(interval(lease));
        let rows = self.control_rows(DOING, query).await?;
        let mut single = HashSet::new();
        let mut streams = HashSet::new();
        for row in &rows {
            let read = || -> Result<_, sqlx::Error> {
                let message: Option<Uuid> = row.try_get("message_id")?;
                let handler: Option<String> = row.try_get("handler_name")?;
                let lane: Option<String> = row.try_get("lane")?;
                let stream: Option<Uuid> = row.try_get("stream_id")?;
                Ok((message.zip(handler), lane.zip(stream)))
            };
            let (row_key, stream_key) = read().map_err(store_error(DOING))?;
            match stream_key {
                Some(key) => drop(streams.insert(key)),
                None => single.extend(row_key),
            }
        }
        Ok(held
            .iter()
            .filter(|lease| match lease.stream_id {
                Some(stream) => streams.contains(&(lease.lane.clone(), stream)),
                None => single.contains(&key_of(lease)),
            })
            .cloned()
            .collect())
    }
}

pub(crate) fn commands(envelopes: &[Envelope]) -> Vec<bool> {
    envelopes
        .iter()
        .map(|envelope| envelope.kind.is_command())
        .collect()
}

fn fingerprints(envelopes: &[Envelope]) -> Vec<i64> {
    envelopes
        .iter()
        .map(|envelope| envelope.payload.short_fingerprint())
        .collect()
}

fn births(envelopes: &[Envelope]) -> Vec<Option<DateTime<Utc>>> {
    envelopes.iter().map(Envelope::born_at).collect()
}

fn columns_of(report: &Report) -> (&'static str, Duration, Option<&'static str>, bool) {
    match &report.action {
        Action::Retry(delay) => ("retry", *delay, None, false),
        Action::Snooze(delay) => ("snooze", *delay, None, false),
        Action::Release => ("release", Duration::ZERO, None, false),
        Action::Dead { reason, park } => ("dead", Duration::ZERO, Some(reason), *park),
    }
}

fn key_of(lease: &Lease) -> (Uuid, String) {
    (lease.message_id, lease.handler.clone())
}

fn keys_where(
    rows: &[PgRow],
    holds: impl Fn(&PgRow) -> Result<bool, sqlx::Error>,
) -> Result<HashSet<(Uuid, String)>, sqlx::Error> {
    let mut keys = HashSet::new();
    for row in rows {
        if holds(row)? {
            keys.insert((row.try_get("message_id")?, row.try_get("handler_name")?));
        }
    }
    Ok(keys)
}

/// Turns the rows of a store call into its report.
pub(crate) fn report(
    rows: &[PgRow],
    token: Option<Uuid>,
    work: impl Fn(&PgRow, Uuid) -> Result<Work, sqlx::Error>,
) -> Result<StoreReport, sqlx::Error> {
    let mut report = StoreReport::default();
    let mut seen = HashSet::new();
    for row in rows {
        let stored = rows::stored(row)?;
        rows::count_outcome(&mut report, &stored, &mut seen);
        if let (true, Some(token)) = (stored.leased, token) {
            report.leased.push(work(row, token)?);
        }
    }
    Ok(report)
}
