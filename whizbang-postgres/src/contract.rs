//! The store's side of the contract: each method is one call of the files named after its topic.

use std::time::Duration;

use futures::future::BoxFuture;
use sqlx::{PgConnection, Postgres, Transaction, pool::PoolConnection};
use uuid::Uuid;
use whizbang::{
    Envelope, InTransaction, StoreErrorKind,
    store::{
        ClaimRequest, CommandAnswer, CommandRun, CommandState, Completion, DeadLetter, HandOver,
        Heartbeat, Instance, Lease, LocalDelivery, MaintenanceTask, OutboxDraft, OutboxRow, Poison,
        Refusal, Report, Requeued, Store, StoreReport, StoreResult, Subscription,
        TransactionOptions, Work,
    },
};

use crate::{error, session, store::PgStore};

impl InTransaction<PgStore> for Transaction<'_, Postgres> {
    fn transaction_connection(&mut self) -> &mut PgConnection {
        self
    }
}

impl Store for PgStore {
    type Connection = PgConnection;
    type Session = PoolConnection<Postgres>;
    type Transaction<'s> = Transaction<'s, Postgres>;

    async fn check_setup(&self, service: &str) -> StoreResult<()> {
        self.check_setup_for(service).await
    }

    async fn register(
        &self,
        instance: &Instance,
        subscriptions: &[Subscription],
    ) -> StoreResult<()> {
        self.register_instance(instance, subscriptions).await
    }

    async fn heartbeat(
        &self,
        instance: &Instance,
        subscriptions: &[Subscription],
        dead_after: Duration,
        lease: Duration,
    ) -> StoreResult<Heartbeat> {
        self.record_heartbeat(instance, subscriptions, dead_after, lease)
            .await
    }

    async fn deregister(&self, instance: Uuid, lease: Duration) -> StoreResult<()> {
        self.deregister_instance(instance, lease).await
    }

    async fn release_leases(
        &self,
        instance: Uuid,
        tokens: &[Uuid],
        lease: Duration,
    ) -> StoreResult<u64> {
        self.release_leases_under(instance, tokens, lease).await
    }

    async fn maintain(&self) -> StoreResult<Vec<MaintenanceTask>> {
        self.perform_maintenance().await
    }

    fn connection_limit(&self) -> Option<usize> {
        let limit = self.inner.pool.options().get_max_connections();
        Some(limit as usize)
    }

    async fn store_inbox(
        &self,
        envelopes: &[Envelope],
        hand_over: Option<&HandOver>,
    ) -> StoreResult<StoreReport> {
        self.store_inbox_messages(envelopes, hand_over).await
    }

    async fn store_poison(&self, poison: &[Poison]) -> StoreResult<()> {
        self.store_dead_letters(poison).await
    }

    async fn claim(&self, request: &ClaimRequest) -> StoreResult<Vec<Work>> {
        self.claim_work(request).await
    }

    async fn next_in_stream(
        &self,
        held: &Lease,
        lease: Duration,
        run: usize,
        handlers: &[String],
    ) -> StoreResult<Vec<Work>> {
        self.next_rows(held, lease, run, handlers).await
    }

    async fn close_streams(&self, held: &[Lease]) -> StoreResult<()> {
        self.close_held_streams(held).await
    }

    async fn report(&self, reports: &[Report]) -> StoreResult<Vec<bool>> {
        self.report_failures(reports).await
    }

    async fn complete_batch(&self, leases: &[Lease]) -> StoreResult<Vec<bool>> {
        self.complete_inbox_messages(leases).await
    }

    async fn mark_started(&self, lease: &Lease) -> StoreResult<bool> {
        self.mark_row_started(lease).await
    }

    async fn renew(&self, held: &[Lease], lease: Duration) -> StoreResult<Vec<Lease>> {
        self.renew_leases(held, lease).await
    }

    async fn open(&self) -> StoreResult<Self::Session> {
        self.open_session().await
    }

    async fn begin<'s>(
        &self,
        session: &'s mut Self::Session,
        options: &TransactionOptions,
    ) -> StoreResult<Self::Transaction<'s>> {
        session::begin(session, options, self.inner.answer_within).await
    }

    async fn nested<'t>(
        transaction: &'t mut Self::Transaction<'_>,
    ) -> StoreResult<Self::Transaction<'t>> {
        session::nested(transaction).await
    }

    fn connection<'t>(transaction: &'t mut Self::Transaction<'_>) -> &'t mut PgConnection {
        transaction
    }

    async fn complete(
        &self,
        connection: &mut PgConnection,
        lease: &Lease,
        last: bool,
    ) -> StoreResult<Completion> {
        self.complete_inbox_message(connection, lease, last).await
    }

    async fn fenced(&self, connection: &mut PgConnection, fence: Uuid) -> StoreResult<bool> {
        self.is_fenced(connection, fence).await
    }

    fn commit<'s>(transaction: Self::Transaction<'s>) -> BoxFuture<'s, StoreResult<()>> {
        Box::pin(session::commit(transaction))
    }

    fn rollback<'s>(transaction: Self::Transaction<'s>) -> BoxFuture<'s, StoreResult<()>> {
        Box::pin(session::rollback(transaction))
    }

    fn classify(error: &(dyn std::error::Error + 'static)) -> Option<StoreErrorKind> {
        error::classify(error)
    }

    fn violated_unique<'e>(error: &'e (dyn std::error::Error + 'static)) -> Option<&'e str> {
        error::violated_unique(error)
    }

    fn give_back(&self, session: Self::Session) {
        session::give_back(session, self.inner.answer_within);
    }

    fn discard(session: Self::Session) {
        session::discard(session);
    }

    async fn begin_command(
        &self,
        connection: &mut PgConnection,
        run: &CommandRun,
    ) -> StoreResult<CommandState> {
        self.begin_command_run(connection, run).await
    }

    async fn finish_command(
        &self,
        connection: &mut PgConnection,
        run: &CommandRun,
        answer: &CommandAnswer,
    ) -> StoreResult<bool> {
        self.finish_command_run(connection, run, answer).await
    }

    async fn store_outbox(
        &self,
        connection: &mut PgConnection,
        drafts: &[OutboxDraft],
    ) -> StoreResult<Vec<bool>> {
        self.store_outbox_messages(connection, drafts).await
    }

    async fn in_transaction(&self, connection: &mut PgConnection) -> StoreResult<bool> {
        session::in_transaction(connection).await
    }

    async fn deliver_locally(
        &self,
        destination: &str,
        limit: usize,
        hand_over: Option<&HandOver>,
    ) -> StoreResult<LocalDelivery> {
        self.deliver_outbox_locally(destination, limit, hand_over)
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
        self.claim_outbox_rows(destination, limit, lease, token, instance)
            .await
    }

    async fn complete_outbox(
        &self,
        destination: &str,
        token: Uuid,
        ids: &[Uuid],
    ) -> StoreResult<u64> {
        self.complete_outbox_published(destination, token, ids)
            .await
    }

    async fn report_outbox(
        &self,
        destination: &str,
        token: Uuid,
        refusals: &[Refusal],
    ) -> StoreResult<bool> {
        self.report_outbox_failures(destination, token, refusals)
            .await
    }

    async fn release_relay(&self, destination: &str, instance: Uuid) -> StoreResult<()> {
        self.release_outbox_relay(destination, instance).await
    }

    async fn cancel_scheduled(&self, ids: &[Uuid]) -> StoreResult<u64> {
        self.cancel_scheduled_messages(ids).await
    }

    async fn dead_letters(&self, after: i64, limit: usize) -> StoreResult<Vec<DeadLetter>> {
        self.list_dead_letters(after, limit).await
    }

    async fn requeue(&self, ids: &[i64]) -> StoreResult<Vec<Requeued>> {
        self.requeue_dead_letters(ids).await
    }

    async fn discard_dead_letters(&self, ids: &[i64]) -> StoreResult<u64> {
        self.throw_dead_letters_away(ids).await
    }
}
