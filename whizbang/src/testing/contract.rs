//! The store's side of the contract: each method is one look at the tables.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use uuid::Uuid;

use super::{
    claim, commands, dead_letters,
    faults::Operation,
    intake::{self, Arrival},
    leases, maintenance,
    memory::{MemoryStore, Turn},
    outbox, service,
    session::{MemoryConnection, MemorySession, MemoryTransaction, UniqueViolation},
    streams,
    tables::{Dead, Source},
};
use crate::{
    Envelope, StoreError, StoreErrorKind,
    store::{
        ClaimRequest, CommandAnswer, CommandRun, CommandState, Completion, DeadLetter, HandOver,
        Heartbeat, Instance, Lease, LocalDelivery, MaintenanceTask, OutboxDraft, OutboxRow, Poison,
        Refusal, Report, Requeued, Store, StoreReport, StoreResult, Subscription,
        TransactionOptions, Work,
    },
};

/// How long a call waits for a connection when all are taken.
const POOL_PATIENCE: Duration = Duration::from_secs(30);

impl Store for MemoryStore {
    type Connection = MemoryConnection;
    type Session = MemorySession;
    type Transaction<'s> = MemoryTransaction<'s>;

    async fn register(
        &self,
        instance: &Instance,
        subscriptions: &[Subscription],
    ) -> StoreResult<()> {
        self.simple(Operation::Register, |tables, now| {
            service::register(tables, instance, subscriptions, now)
        })
        .await?
    }

    async fn heartbeat(
        &self,
        instance: &Instance,
        subscriptions: &[Subscription],
        dead_after: Duration,
        _lease: Duration,
    ) -> StoreResult<Heartbeat> {
        self.simple(Operation::Heartbeat, |tables, now| {
            service::heartbeat(tables, instance.id, subscriptions, dead_after, now)
        })
        .await
    }

    async fn deregister(&self, instance: Uuid, _lease: Duration) -> StoreResult<()> {
        self.simple(Operation::Deregister, |tables, now| {
            service::deregister(tables, instance, now);
        })
        .await
    }

    async fn release_leases(
        &self,
        instance: Uuid,
        tokens: &[Uuid],
        _lease: Duration,
    ) -> StoreResult<u64> {
        self.simple(Operation::ReleaseLeases, |tables, now| {
            let ended = leases::Ended {
                instance,
                tokens: Some(tokens),
                lost: false,
            };
            leases::release(tables, &ended, now).0
        })
        .await
    }

    async fn maintain(&self) -> StoreResult<Vec<MaintenanceTask>> {
        self.simple(Operation::Maintain, maintenance::maintain)
            .await
    }

    fn connection_limit(&self) -> Option<usize> {
        self.client.connections.as_ref().map(|(limit, _)| *limit)
    }

    async fn store_inbox(
        &self,
        envelopes: &[Envelope],
        hand_over: Option<&HandOver>,
    ) -> StoreResult<StoreReport> {
        let arrivals: Vec<_> = envelopes
            .iter()
            .map(|envelope| Arrival {
                born_at: envelope.born_at(),
                fingerprint: Some(envelope.payload.short_fingerprint()),
                envelope: envelope.clone(),
            })
            .collect();
        self.simple(Operation::StoreInbox, |tables, now| {
            intake::store(tables, &arrivals, hand_over, now)
        })
        .await
    }

    async fn store_poison(&self, poison: &[Poison]) -> StoreResult<()> {
        self.simple(Operation::StorePoison, |tables, now| {
            for poison in poison {
                tables.bury(Dead {
                    source: Source::Poison(Box::new(poison.clone())),
                    attempts: 0,
                    reason: poison.reason.to_owned(),
                    error: Some(poison.error.clone()),
                    parked: false,
                    died_at: now,
                });
            }
        })
        .await
    }

    async fn claim(&self, request: &ClaimRequest) -> StoreResult<Vec<Work>> {
        self.simple(Operation::Claim, |tables, now| {
            claim::claim(tables, request, now)
        })
        .await
    }

    async fn next_in_stream(
        &self,
        held: &Lease,
        lease: Duration,
        run: usize,
        handlers: &[String],
    ) -> StoreResult<Vec<Work>> {
        self.call(Operation::NextInStream, |tables, now| {
            streams::next(tables, held, lease, run, handlers, now)
        })
        .await
    }

    async fn close_streams(&self, held: &[Lease]) -> StoreResult<()> {
        self.call(Operation::CloseStreams, |tables, now| {
            streams::close(tables, held, now)
        })
        .await
    }

    async fn report(&self, reports: &[Report]) -> StoreResult<Vec<bool>> {
        self.call(Operation::Report, |tables, now| {
            leases::report(tables, reports, now)
        })
        .await
    }

    async fn complete_batch(&self, leases: &[Lease]) -> StoreResult<Vec<bool>> {
        self.call(Operation::CompleteBatch, |tables, _| {
            leases::complete_batch(tables, leases)
        })
        .await
    }

    async fn mark_started(&self, lease: &Lease) -> StoreResult<bool> {
        self.call(Operation::MarkStarted, |tables, _| {
            leases::mark_started(tables, lease)
        })
        .await
    }

    async fn renew(&self, held: &[Lease], lease: Duration) -> StoreResult<Vec<Lease>> {
        self.simple(Operation::Renew, |tables, now| {
            leases::renew(tables, held, lease, now)
        })
        .await
    }

    async fn open(&self) -> StoreResult<MemorySession> {
        let permit = match &self.client.connections {
            None => None,
            Some((_, pool)) => {
                let place = Arc::clone(pool).acquire_owned();
                let waited = tokio::time::timeout(POOL_PATIENCE, place).await;
                Some(waited.map_err(no_connection)?.map_err(no_connection)?)
            }
        };
        self.simple(Operation::Open, |_, _| ()).await?;
        Ok(MemorySession::new(self.clone(), permit))
    }

    async fn begin<'s>(
        &self,
        session: &'s mut MemorySession,
        options: &TransactionOptions,
    ) -> StoreResult<MemoryTransaction<'s>> {
        session.connection.begin(options).await?;
        Ok(MemoryTransaction::new(&mut session.connection))
    }

    async fn nested<'t>(
        transaction: &'t mut Self::Transaction<'_>,
    ) -> StoreResult<Self::Transaction<'t>> {
        MemoryTransaction::nested(transaction.connection)
    }

    fn connection<'t>(transaction: &'t mut Self::Transaction<'_>) -> &'t mut MemoryConnection {
        transaction.connection
    }

    async fn complete(
        &self,
        connection: &mut MemoryConnection,
        lease: &Lease,
        last: bool,
    ) -> StoreResult<Completion> {
        connection
            .statement(Operation::Complete, |tables, open, _| {
                streams::complete(tables, open, lease, last)
            })
            .await
    }

    async fn fenced(&self, connection: &mut MemoryConnection, fence: Uuid) -> StoreResult<bool> {
        connection
            .statement(Operation::Fenced, |_, open, _| {
                Turn::Done(Ok(open.fence == Some(fence)))
            })
            .await
    }

    fn commit<'s>(transaction: Self::Transaction<'s>) -> BoxFuture<'s, StoreResult<()>> {
        Box::pin(transaction.commit())
    }

    fn rollback<'s>(transaction: Self::Transaction<'s>) -> BoxFuture<'s, StoreResult<()>> {
        Box::pin(transaction.roll_back())
    }

    fn classify(error: &(dyn std::error::Error + 'static)) -> Option<StoreErrorKind> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(error) = error.downcast_ref::<StoreError>() {
                return Some(error.kind);
            }
            next = error.source();
        }
        None
    }

    fn violated_unique<'e>(error: &'e (dyn std::error::Error + 'static)) -> Option<&'e str> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(violation) = error.downcast_ref::<UniqueViolation>() {
                return Some(&violation.constraint);
            }
            next = error.source();
        }
        None
    }

    fn discard(session: MemorySession) {
        drop(session);
    }

    async fn begin_command(
        &self,
        connection: &mut MemoryConnection,
        run: &CommandRun,
    ) -> StoreResult<CommandState> {
        connection
            .statement(Operation::BeginCommand, |tables, open, now| {
                commands::begin(tables, open, run, now)
            })
            .await
    }

    async fn finish_command(
        &self,
        connection: &mut MemoryConnection,
        run: &CommandRun,
        answer: &CommandAnswer,
    ) -> StoreResult<bool> {
        connection
            .statement(Operation::FinishCommand, |tables, open, _| {
                commands::finish(tables, open, run, answer)
            })
            .await
    }

    async fn store_outbox(
        &self,
        connection: &mut MemoryConnection,
        drafts: &[OutboxDraft],
    ) -> StoreResult<Vec<bool>> {
        connection
            .statement(Operation::StoreOutbox, |tables, open, now| {
                outbox::store(tables, open, drafts, now)
            })
            .await
    }

    async fn in_transaction(&self, connection: &mut MemoryConnection) -> StoreResult<bool> {
        Ok(connection.is_in_transaction())
    }

    async fn deliver_locally(
        &self,
        destination: &str,
        limit: usize,
        hand_over: Option<&HandOver>,
    ) -> StoreResult<LocalDelivery> {
        self.simple(Operation::DeliverLocally, |tables, now| {
            outbox::deliver_locally(tables, destination, limit, hand_over, now)
        })
        .await
    }

    async fn claim_outbox(
        &self,
        destination: &str,
        limit: usize,
        lease: Duration,
        token: Uuid,
        instance: Uuid,
    ) -> StoreResult<Vec<OutboxRow>> {
        let relay = outbox::Relay {
            destination,
            token,
            instance,
            lease,
        };
        self.simple(Operation::ClaimOutbox, |tables, now| {
            outbox::claim(tables, &relay, limit, now)
        })
        .await
    }

    async fn complete_outbox(
        &self,
        destination: &str,
        _token: Uuid,
        ids: &[Uuid],
    ) -> StoreResult<u64> {
        self.simple(Operation::CompleteOutbox, |tables, _| {
            outbox::complete(tables, destination, ids)
        })
        .await
    }

    async fn report_outbox(
        &self,
        destination: &str,
        token: Uuid,
        refusals: &[Refusal],
    ) -> StoreResult<bool> {
        self.simple(Operation::ReportOutbox, |tables, now| {
            outbox::report(tables, destination, token, refusals, now)
        })
        .await
    }

    async fn release_relay(&self, destination: &str, instance: Uuid) -> StoreResult<()> {
        self.simple(Operation::ReleaseRelay, |tables, _| {
            outbox::release(tables, destination, instance);
        })
        .await
    }

    async fn cancel_scheduled(&self, ids: &[Uuid]) -> StoreResult<u64> {
        self.simple(Operation::CancelScheduled, |tables, now| {
            outbox::cancel(tables, ids, now)
        })
        .await
    }

    async fn dead_letters(&self, after: i64, limit: usize) -> StoreResult<Vec<DeadLetter>> {
        self.simple(Operation::DeadLetters, |tables, _| {
            dead_letters::list(tables, after, limit)
        })
        .await
    }

    async fn requeue(&self, ids: &[i64]) -> StoreResult<Vec<Requeued>> {
        self.simple(Operation::Requeue, |tables, now| {
            dead_letters::requeue(tables, ids, now)
        })
        .await
    }

    async fn discard_dead_letters(&self, ids: &[i64]) -> StoreResult<u64> {
        self.simple(Operation::DiscardDeadLetters, |tables, now| {
            dead_letters::discard(tables, ids, now)
        })
        .await
    }
}

fn no_connection(error: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError::new(
        StoreErrorKind::Unavailable,
        "all connections of the pool are taken",
        error,
    )
}
