//! What the checks share: a registered instance, messages, and the steps of a handler's run.

use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::{NoContext, Timestamp, Uuid};

use super::{Harness, Verdict, Violation, must, must_eq};
use crate::{
    Envelope, Headers, MessageKind, Payload, StreamKey,
    store::{
        Action, ClaimRequest, Completion, HandOver, Instance, Isolation, Lease, OutboxDraft,
        Report, Room, Schedule, Store, Subscription, TransactionOptions, Work,
    },
};

pub(super) const SERVICE: &str = "checks";
pub(super) const LEASE: Duration = Duration::from_secs(60);
pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const DAY: Duration = Duration::from_secs(24 * 3600);

/// Handler `one` and `two` listen to `seen`; `first` and `second` share lane `pair` and listen to
/// `opened` and `closed`; `act` handles the command `do`.
pub(super) const LINES: &[(&str, &str, &str)] = &[
    ("one", "seen", "one"),
    ("two", "seen", "two"),
    ("single", "noted", "single"),
    ("first", "opened", "pair"),
    ("second", "closed", "pair"),
    ("act", "do", "act"),
];

pub(super) struct Bench<'h, H: Harness> {
    pub(super) harness: &'h H,
    pub(super) store: H::Store,
    pub(super) instance: Instance,
}

pub(super) fn lines(lines: &[(&str, &str, &str)]) -> Vec<Subscription> {
    lines
        .iter()
        .map(|(handler, message_type, lane)| Subscription {
            handler: (*handler).to_owned(),
            message_type: (*message_type).to_owned(),
            lane: (*lane).to_owned(),
        })
        .collect()
}

pub(super) fn instance() -> Instance {
    Instance {
        id: Uuid::now_v7(),
        service: SERVICE.to_owned(),
        host: "somewhere".to_owned(),
    }
}

/// An event with this number as its payload.
pub(super) fn event(message_type: &str, number: i64) -> Envelope {
    Envelope {
        id: Uuid::now_v7(),
        message_type: message_type.to_owned(),
        kind: MessageKind::Event,
        payload: payload(number),
        stream: None,
        correlation_id: None,
        causation_id: None,
        headers: Headers::default(),
    }
}

pub(super) fn payload(number: i64) -> Payload {
    Payload::from_stored(format!("{{\"number\":{number}}}"))
}

pub(super) fn in_stream(message_type: &str, number: i64, stream: &str) -> Envelope {
    Envelope {
        stream: Some(StreamKey::from(stream)),
        ..event(message_type, number)
    }
}

pub(super) fn command(number: i64) -> Envelope {
    Envelope {
        kind: MessageKind::Command,
        ..event("do", number)
    }
}

/// A time-ordered id as if it had been made at this time.
pub(super) fn id_of(time: DateTime<Utc>) -> Uuid {
    let seconds = u64::try_from(time.timestamp()).unwrap_or(0);
    let nanos = time.timestamp_subsec_nanos();
    Uuid::new_v7(Timestamp::from_unix(NoContext, seconds, nanos))
}

pub(super) fn draft(envelope: &Envelope, destination: &str) -> OutboxDraft {
    OutboxDraft {
        envelope: envelope.clone(),
        destination: destination.to_owned(),
        when: Schedule::Now,
    }
}

pub(super) fn report(lease: &Lease, action: Action) -> Report {
    Report {
        lease: lease.clone(),
        action,
        error: Some("the check says so".to_owned()),
    }
}

pub(super) fn dead(park: bool) -> Action {
    Action::Dead {
        reason: "failed",
        park,
    }
}

/// Numbers in the payloads, in the order of the rows.
pub(super) fn numbers(works: &[Work]) -> Vec<i64> {
    works.iter().map(number).collect()
}

pub(super) fn number(work: &Work) -> i64 {
    number_in(work.payload.as_str()).unwrap_or(-1)
}

pub(super) fn number_in(payload: &str) -> Option<i64> {
    let value: serde_json::Value = serde_json::from_str(payload).ok()?;
    value.get("number")?.as_i64()
}

pub(super) fn options(fence: Uuid) -> TransactionOptions {
    TransactionOptions {
        fence,
        timeout: Duration::from_secs(30),
        isolation: Isolation::ReadCommitted,
    }
}

impl<'h, H: Harness> Bench<'h, H> {
    /// An empty store on which one instance with all handlers is registered.
    pub(super) async fn new(harness: &'h H) -> Result<Self, Violation> {
        let bench = Self {
            harness,
            store: harness.fresh().await.map_err(Violation::of_harness)?,
            instance: instance(),
        };
        bench.sign_on().await?;
        Ok(bench)
    }

    pub(super) async fn sign_on(&self) -> Verdict {
        self.store.register(&self.instance, &lines(LINES)).await?;
        Ok(())
    }

    /// Lets time pass while the service is running.
    pub(super) async fn pass(&self, time: Duration) -> Verdict {
        self.let_pass(time).await?;
        self.sign_on().await
    }

    /// Lets time pass while nobody says that he lives.
    pub(super) async fn let_pass(&self, time: Duration) -> Verdict {
        let passed = self.harness.pass(&self.store, time).await;
        passed.map_err(Violation::of_harness)
    }

    /// The database's clock.
    pub(super) async fn now(&self) -> Result<DateTime<Utc>, Violation> {
        let now = self.harness.now(&self.store).await;
        now.map_err(Violation::of_harness)
    }

    /// Makes the transaction fail.
    pub(super) async fn spoil(&self, connection: &mut <H::Store as Store>::Connection) -> Verdict {
        let spoiled = self.harness.spoil(connection).await;
        must!(spoiled.is_err(), "a statement with a mistake fails");
        Ok(())
    }

    /// Stores envelopes that must all be new.
    pub(super) async fn stored(&self, envelopes: &[Envelope]) -> Verdict {
        let report = self.store.store_inbox(envelopes, None).await?;
        must_eq!(report.stored, envelopes.len() as u64, "stored messages");
        Ok(())
    }

    pub(super) fn room(handlers: &[&str], limit: usize) -> Vec<Room> {
        handlers
            .iter()
            .filter_map(|name| LINES.iter().find(|(handler, ..)| handler == name))
            .map(|(handler, _, lane)| Room {
                handler: (*handler).to_owned(),
                lane: (*lane).to_owned(),
                limit,
            })
            .collect()
    }

    pub(super) fn request(&self, handlers: &[&str]) -> ClaimRequest {
        ClaimRequest {
            instance: self.instance.id,
            token: Uuid::now_v7(),
            lease: LEASE,
            room: Self::room(handlers, 100),
            limit: 100,
            run: 20,
            rescan: true,
        }
    }

    pub(super) async fn claim(&self, handlers: &[&str]) -> Result<Vec<Work>, Violation> {
        Ok(self.store.claim(&self.request(handlers)).await?)
    }

    /// Claims exactly one row.
    pub(super) async fn claim_one(&self, handler: &str) -> Result<Work, Violation> {
        let mut works = self.claim(&[handler]).await?;
        must_eq!(works.len(), 1, "rows claimed for `{handler}`");
        works
            .pop()
            .ok_or_else(|| Violation::new("no row was claimed"))
    }

    pub(super) fn hand_over(&self, handlers: &[&str], limit: usize) -> HandOver {
        HandOver {
            instance: self.instance.id,
            token: Uuid::now_v7(),
            lease: LEASE,
            room: Self::room(handlers, limit),
        }
    }

    /// Runs a row the way the runtime does: its effect and its completion in one transaction.
    pub(super) async fn run(
        &self,
        lease: &Lease,
        row: &str,
        last: bool,
    ) -> Result<Completion, Violation> {
        let mut session = self.store.open().await?;
        let mut transaction = self
            .store
            .begin(&mut session, &options(lease.token))
            .await?;
        let connection = H::Store::connection(&mut transaction);
        self.harness
            .write(connection, row)
            .await
            .map_err(Violation::of_harness)?;
        let completion = self.store.complete(connection, lease, last).await?;
        match completion {
            Completion::Done | Completion::More => H::Store::commit(transaction).await?,
            Completion::Lost | Completion::Unfenced => H::Store::rollback(transaction).await?,
        }
        Ok(completion)
    }

    /// Completes a row, which must work.
    pub(super) async fn complete(&self, work: &Work) -> Verdict {
        let completion = self.run(&work.lease, "", true).await?;
        must!(
            matches!(completion, Completion::Done | Completion::More),
            "a held row must complete, found {completion:?}"
        );
        if completion == Completion::More {
            self.store
                .close_streams(std::slice::from_ref(&work.lease))
                .await?;
        }
        Ok(())
    }

    /// Reports one row; says whether its lease held.
    pub(super) async fn report(&self, lease: &Lease, action: Action) -> Result<bool, Violation> {
        let held = self.store.report(&[report(lease, action)]).await?;
        must_eq!(held.len(), 1, "answers to one report");
        Ok(held == [true])
    }

    /// Commits outbox rows.
    pub(super) async fn publish(&self, drafts: &[OutboxDraft]) -> Result<Vec<bool>, Violation> {
        let mut session = self.store.open().await?;
        let mut transaction = self
            .store
            .begin(&mut session, &options(Uuid::now_v7()))
            .await?;
        let connection = H::Store::connection(&mut transaction);
        let new = self.store.store_outbox(connection, drafts).await?;
        H::Store::commit(transaction).await?;
        Ok(new)
    }

    /// Checks the effects that are committed, those of [`complete`](Self::complete) left out.
    pub(super) async fn must_be_written(&self, rows: &[&str]) -> Verdict {
        let written = self.harness.written(&self.store).await;
        let mut written = written.map_err(Violation::of_harness)?;
        written.retain(|row| !row.is_empty());
        written.sort();
        must_eq!(written, rows, "effects that are committed");
        Ok(())
    }

    pub(super) async fn dead(&self) -> Result<Vec<crate::store::DeadLetter>, Violation> {
        Ok(self.store.dead_letters(0, 1000).await?)
    }
}
