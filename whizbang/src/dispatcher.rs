//! Publishing, sending and executing: the way from user code into the outbox.

use std::{collections::BTreeMap, future::IntoFuture, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use tokio::sync::watch;
use uuid::Uuid;

use crate::{
    Command, Envelope, Event, Message, MessageKind, Metadata, PublishError,
    handler::States,
    registry::Handlers,
    store::{InTransaction, OutboxDraft, Schedule, Store, StoreError},
};

mod command;
mod execute;
mod request;
mod turns;

pub(crate) use command::{
    CONFLICT_RETRIES, CommandFailure, CommandOutcome, END_WITHIN, already_done, command_run,
    hexadecimal, panic_text, run_command,
};
pub use request::{Execute, ExecuteIn};

/// Publishes events, sends commands and executes idempotent commands. Cheap to clone.
pub struct Dispatcher<S: Store> {
    inner: Arc<Inner<S>>,
}

impl<S: Store> Clone for Dispatcher<S> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

struct Inner<S: Store> {
    store: S,
    routing: Routing,
    message_limit: usize,
    handlers: Arc<Handlers<S>>,
    states: Arc<States>,
    relay_hint: Arc<RelayHint>,
    executions: turns::Executions,
    execute_wait: Duration,
}

/// Where messages go.
#[derive(Debug, Clone, Default)]
pub struct Routing {
    /// The service itself, which is a destination like any other.
    pub service: String,
    /// Transports that carry this service's messages.
    pub transports: Vec<String>,
    /// Destinations of single commands, by wire name.
    pub routes: BTreeMap<String, String>,
}

impl Routing {
    /// The service itself and its transports.
    fn destinations(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.service)
            .chain(&self.transports)
            .map(String::as_str)
    }

    /// A row that no relay looks for would wait in the outbox for ever, unnoticed.
    fn check(&self, destination: &str, message_type: &str) -> Result<(), PublishError> {
        if self.destinations().any(|known| known == destination) {
            return Ok(());
        }
        let known: Vec<_> = self
            .destinations()
            .map(|name| format!("`{name}`"))
            .collect();
        Err(PublishError::UnknownDestination {
            message_type: message_type.to_owned(),
            destination: destination.to_owned(),
            known: known.join(", "),
        })
    }

    /// What is wrong with it before anything is published.
    pub(crate) fn faults(&self) -> Vec<String> {
        let mut faults: Vec<_> = self
            .routes
            .iter()
            .filter_map(|(command, destination)| self.check(destination, command).err())
            .map(|error| error.to_string())
            .collect();
        let mut seen = std::collections::HashSet::new();
        for name in self.destinations() {
            if !seen.insert(name) {
                faults.push(format!(
                    "two destinations are named `{name}`; give each transport a name of its own, other than the service's"
                ));
            }
        }
        faults
    }
}

/// Wakes this process's relays: at once after commits of ours, and for a while by fast polling
/// after a publish in a transaction whose commit we do not see.
#[derive(Debug)]
pub struct RelayHint {
    committed: watch::Sender<u64>,
    published: watch::Sender<u64>,
}

impl Default for RelayHint {
    fn default() -> Self {
        Self {
            committed: watch::Sender::new(0),
            published: watch::Sender::new(0),
        }
    }
}

impl RelayHint {
    /// Rows are visible now.
    pub fn committed(&self) {
        self.committed
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Rows will be visible when a transaction of the user's commits.
    pub fn published(&self) {
        self.published
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Hears of every [`committed`](Self::committed) from now on.
    pub fn on_committed(&self) -> watch::Receiver<u64> {
        self.committed.subscribe()
    }

    /// Hears of every [`published`](Self::published) from now on.
    pub fn on_published(&self) -> watch::Receiver<u64> {
        self.published.subscribe()
    }
}

/// What a dispatcher is made of.
pub struct DispatcherParts<S: Store> {
    /// The store.
    pub store: S,
    /// Where messages go.
    pub routing: Routing,
    /// Largest payload in bytes.
    pub message_limit: usize,
    /// Handlers, for `execute`.
    pub handlers: Arc<Handlers<S>>,
    /// States, for `execute`.
    pub states: Arc<States>,
    /// How the relay is woken.
    pub relay_hint: Arc<RelayHint>,
    /// How long a repeat waits for the first execution.
    pub execute_wait: Duration,
}

impl<S: Store> Dispatcher<S> {
    /// Puts a dispatcher together; `start()` does this.
    pub fn new(parts: DispatcherParts<S>) -> Self {
        Self {
            inner: Arc::new(Inner {
                store: parts.store,
                routing: parts.routing,
                message_limit: parts.message_limit,
                handlers: parts.handlers,
                states: parts.states,
                relay_hint: parts.relay_hint,
                executions: turns::Executions::default(),
                execute_wait: parts.execute_wait,
            }),
        }
    }

    /// What wakes this process's relays.
    pub fn relay_hint(&self) -> &Arc<RelayHint> {
        &self.inner.relay_hint
    }

    /// The store behind it.
    pub fn store(&self) -> &S {
        &self.inner.store
    }

    /// Publishes an event in your transaction: it leaves when, and only if, you commit.
    ///
    /// Nothing is written until the result is awaited; before that it takes options such as
    /// [`after`](Outgoing::after) and [`id`](Outgoing::id). Resolves to the message id.
    pub fn publish<'a, E: Event>(
        &'a self,
        transaction: &'a mut impl InTransaction<S>,
        event: &E,
    ) -> Outgoing<'a, S> {
        self.outgoing(Ok(transaction.transaction_connection()), event)
    }

    /// Sends a command in your transaction to the one service that handles it; otherwise like
    /// [`publish`](Self::publish).
    pub fn send<'a, C: Command>(
        &'a self,
        transaction: &'a mut impl InTransaction<S>,
        command: &C,
    ) -> Outgoing<'a, S> {
        self.outgoing(Ok(transaction.transaction_connection()), command)
    }

    /// Publishes an event on a connection that you have opened a transaction on by other means.
    /// Resolves to [`PublishError::NoTransaction`] if none is open.
    pub fn publish_on<'a, E: Event>(
        &'a self,
        connection: &'a mut S::Connection,
        event: &E,
    ) -> Outgoing<'a, S> {
        let mut outgoing = self.outgoing(Ok(connection), event);
        outgoing.check_transaction = true;
        outgoing
    }

    /// Sends a command on a connection that you have opened a transaction on by other means;
    /// otherwise like [`publish_on`](Self::publish_on).
    pub fn send_on<'a, C: Command>(
        &'a self,
        connection: &'a mut S::Connection,
        command: &C,
    ) -> Outgoing<'a, S> {
        let mut outgoing = self.outgoing(Ok(connection), command);
        outgoing.check_transaction = true;
        outgoing
    }

    /// Publishes many events in one statement; resolves to their message ids, in order.
    ///
    /// # Errors
    /// As [`publish`](Self::publish); nothing is written if one of them cannot be.
    pub async fn publish_all<'e, E: Event>(
        &self,
        transaction: &mut impl InTransaction<S>,
        events: impl IntoIterator<Item = &'e E>,
    ) -> Result<Vec<Uuid>, PublishError> {
        let mut ids = Vec::new();
        let mut drafts = Vec::new();
        for event in events {
            let envelope = self.envelope(event)?;
            ids.push(envelope.id);
            drafts.extend(self.drafts(envelope, Schedule::Now, None));
        }
        if drafts.is_empty() {
            return Ok(ids);
        }
        let store = &self.inner.store;
        store
            .store_outbox(transaction.transaction_connection(), &drafts)
            .await?;
        self.inner.relay_hint.published();
        Ok(ids)
    }

    /// Opens a transaction, gives it to `work`, commits when it returns `Ok` and wakes the relay
    /// at once; on `Err` everything is rolled back.
    ///
    /// ```ignore
    /// let order = dispatcher.transaction(async |tx| {
    ///     let order = insert_order(tx).await?;
    ///     dispatcher.publish(tx, &OrderPlaced::from(&order)).await?;
    ///     anyhow::Ok(order)
    /// }).await?;
    /// ```
    ///
    /// # Errors
    /// What `work` returns, or the store's own error.
    pub async fn transaction<T, E, F>(&self, work: F) -> Result<T, E>
    where
        E: From<StoreError>,
        F: AsyncFnOnce(&mut S::Transaction<'_>) -> Result<T, E>,
    {
        let store = &self.inner.store;
        let mut session = Guarded::<S>::new(store.open().await?);
        let options = crate::store::TransactionOptions {
            fence: Uuid::now_v7(),
            timeout: Duration::ZERO,
            isolation: crate::store::Isolation::ReadCommitted,
        };
        let mut transaction = store.begin(session.get()?, &options).await?;
        let answer = work(&mut transaction).await;
        match answer {
            Ok(value) => {
                // Fails on a transaction that a swallowed error has aborted: COMMIT would not.
                let connection = S::connection(&mut transaction);
                if !store.fenced(connection, options.fence).await? {
                    return Err(ended_inside().into());
                }
                S::commit(transaction).await?;
                session.keep();
                self.inner.relay_hint.committed();
                Ok(value)
            }
            Err(error) => {
                if S::rollback(transaction).await.is_ok() {
                    session.keep();
                }
                Err(error)
            }
        }
    }

    /// Cancels a scheduled message that has not left; `false` if it has.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn cancel(&self, message_id: Uuid) -> Result<bool, StoreError> {
        let cancelled = self.inner.store.cancel_scheduled(&[message_id]).await?;
        Ok(cancelled > 0)
    }

    pub(crate) fn outgoing<'a, M: Message>(
        &'a self,
        connection: Result<&'a mut S::Connection, PublishError>,
        message: &M,
    ) -> Outgoing<'a, S> {
        Outgoing {
            dispatcher: self,
            target: connection.and_then(|connection| Ok((connection, self.envelope(message)?))),
            when: Schedule::Now,
            destination: None,
            check_transaction: false,
        }
    }

    fn envelope<M: Message>(&self, message: &M) -> Result<Envelope, PublishError> {
        let envelope = Envelope::new(message).map_err(|source| PublishError::Encode {
            message_type: M::NAME,
            source,
        })?;
        self.checked::<M>(envelope)
    }

    fn checked<M: Message>(&self, mut envelope: Envelope) -> Result<Envelope, PublishError> {
        let size = envelope.payload.as_str().len();
        if size > self.inner.message_limit {
            return Err(PublishError::TooLarge {
                message_type: M::NAME,
                size,
                limit: self.inner.message_limit,
            });
        }
        envelope.headers.source = Some(self.inner.routing.service.clone());
        Ok(envelope)
    }

    fn drafts(
        &self,
        envelope: Envelope,
        when: Schedule,
        destination: Option<String>,
    ) -> Vec<OutboxDraft> {
        let destinations = match destination {
            Some(destination) => vec![destination],
            None => self.destinations(&envelope),
        };
        destinations
            .into_iter()
            .map(|destination| OutboxDraft {
                envelope: envelope.clone(),
                destination,
                when,
            })
            .collect()
    }

    fn destinations(&self, envelope: &Envelope) -> Vec<String> {
        let routing = &self.inner.routing;
        match envelope.kind {
            MessageKind::Event => routing.destinations().map(str::to_owned).collect(),
            MessageKind::Command => vec![self.owner_of(&envelope.message_type)],
        }
    }

    fn owner_of(&self, command: &str) -> String {
        let routing = &self.inner.routing;
        if let Some(destination) = routing.routes.get(command) {
            return destination.clone();
        }
        let handled_here = self.inner.handlers.for_command(command).is_some();
        match routing.transports.first() {
            Some(transport) if !handled_here => transport.clone(),
            _ => routing.service.clone(),
        }
    }
}

fn ended_inside() -> StoreError {
    StoreError::message(
        crate::StoreErrorKind::Other,
        "the transaction was ended inside the closure; leave COMMIT and ROLLBACK to the dispatcher",
    )
}

/// A message that is about to be written to the outbox; awaiting it writes it.
#[must_use = "nothing is published or sent until this is awaited"]
pub struct Outgoing<'a, S: Store> {
    dispatcher: &'a Dispatcher<S>,
    target: Result<(&'a mut S::Connection, Envelope), PublishError>,
    when: Schedule,
    destination: Option<String>,
    check_transaction: bool,
}

impl<'a, S: Store> Outgoing<'a, S> {
    /// Lets it leave after this time, by the database's clock.
    pub fn after(mut self, delay: Duration) -> Self {
        self.when = Schedule::After(delay);
        self
    }

    /// Lets it leave at this time, by the database's clock.
    pub fn at(mut self, time: DateTime<Utc>) -> Self {
        self.when = Schedule::At(time);
        self
    }

    /// Uses this message id instead of a fresh one. Derive it from what happened, and a repeated
    /// publish is recognised by every receiver.
    pub fn id(self, id: Uuid) -> Self {
        if id.is_nil() {
            return self.fail(PublishError::NilId);
        }
        self.edit(|envelope| {
            if envelope.correlation_id == Some(envelope.id) {
                envelope.correlation_id = Some(id);
            }
            envelope.id = id;
        })
    }

    /// Sets the correlation id.
    pub fn correlation(self, id: Uuid) -> Self {
        self.edit(|envelope| envelope.correlation_id = Some(id))
    }

    /// Sets the causation id.
    pub fn causation(self, id: Uuid) -> Self {
        self.edit(|envelope| envelope.causation_id = Some(id))
    }

    /// Sets the W3C trace context.
    pub fn traceparent(self, value: impl Into<String>) -> Self {
        let value = value.into();
        self.edit(|envelope| envelope.headers.traceparent = Some(value))
    }

    /// Adds a header.
    pub fn header(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let (name, value) = (name.into(), value.into());
        if name.contains('\0') || value.contains('\0') {
            return self.fail(PublishError::Header {
                name: name.replace('\0', "\u{FFFD}"),
            });
        }
        self.edit(|envelope| {
            envelope.headers.headers.insert(name, value);
        })
    }

    /// Sends it to this outbox destination only: the service's own name or that of one of its
    /// transports. Any other name resolves to [`PublishError::UnknownDestination`].
    pub fn to(mut self, destination: impl Into<String>) -> Self {
        self.destination = Some(destination.into());
        self
    }

    /// Takes correlation, causation and trace context over from the message being handled.
    pub(crate) fn caused_by(self, metadata: &Metadata) -> Self {
        self.edit(|envelope| {
            envelope.correlation_id = metadata.correlation_id.or(Some(metadata.message_id));
            envelope.causation_id = Some(metadata.message_id);
            envelope
                .headers
                .traceparent
                .clone_from(&metadata.headers.traceparent);
        })
    }

    fn edit(mut self, change: impl FnOnce(&mut Envelope)) -> Self {
        if let Ok((_, envelope)) = &mut self.target {
            change(envelope);
        }
        self
    }

    fn fail(mut self, error: PublishError) -> Self {
        self.target = self.target.and(Err(error));
        self
    }

    async fn write(self) -> Result<Uuid, PublishError> {
        let (connection, envelope) = self.target?;
        let inner = &self.dispatcher.inner;
        if self.check_transaction && !inner.store.in_transaction(connection).await? {
            return Err(PublishError::NoTransaction);
        }
        let id = envelope.id;
        if let Some(destination) = &self.destination {
            inner.routing.check(destination, &envelope.message_type)?;
        }
        let drafts = self
            .dispatcher
            .drafts(envelope, self.when, self.destination);
        let new = inner.store.store_outbox(connection, &drafts).await?;
        if new.contains(&false) {
            return Err(PublishError::DuplicateId { id });
        }
        if self.when == Schedule::Now {
            inner.relay_hint.published();
        }
        Ok(id)
    }
}

impl<'a, S: Store> IntoFuture for Outgoing<'a, S> {
    type Output = Result<Uuid, PublishError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.write())
    }
}

/// A session that is closed unless it is known to be at rest: what makes dropping a future safe.
pub(crate) struct Guarded<S: Store> {
    session: Option<S::Session>,
    at_rest: bool,
}

impl<S: Store> Guarded<S> {
    pub(crate) fn new(session: S::Session) -> Self {
        Self {
            session: Some(session),
            at_rest: false,
        }
    }

    pub(crate) fn get(&mut self) -> Result<&mut S::Session, StoreError> {
        self.session.as_mut().ok_or_else(|| {
            StoreError::message(
                crate::StoreErrorKind::Other,
                "the session was given back already",
            )
        })
    }

    /// The transaction has ended in good order, so the connection may be used again.
    pub(crate) fn keep(&mut self) {
        self.at_rest = true;
    }

    /// Takes the session out, to be used for the next transaction.
    pub(crate) fn into_session(mut self) -> Option<S::Session> {
        if self.at_rest {
            self.session.take()
        } else {
            None
        }
    }
}

impl<S: Store> Drop for Guarded<S> {
    fn drop(&mut self) {
        if let Some(session) = self.session.take()
            && !self.at_rest
        {
            S::discard(session);
        }
    }
}
