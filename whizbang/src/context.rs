//! What a handler works with: its transaction, and publishing inside it.

use crate::{
    Command, Event, Metadata,
    dispatcher::{Dispatcher, ExecuteIn, Outgoing},
    store::{Store, StoreError, TransactionOptions},
};

/// The transaction a handler runs in.
///
/// What is written through [`conn`](Self::conn), what is published through
/// [`publish`](Self::publish) and the completion of the message commit together, or not at all.
/// There is no commit here: the runtime commits when the handler returns `Ok`.
///
/// `whizbang_postgres::HandlerContext` is this type with the store filled in.
pub struct Context<'c, S: Store> {
    transaction: S::Transaction<'c>,
    dispatcher: &'c Dispatcher<S>,
    metadata: &'c Metadata,
    published: usize,
}

impl<'c, S: Store> Context<'c, S> {
    /// Puts a context together; the runtime does this.
    pub fn new(
        transaction: S::Transaction<'c>,
        dispatcher: &'c Dispatcher<S>,
        metadata: &'c Metadata,
    ) -> Self {
        Self {
            transaction,
            dispatcher,
            metadata,
            published: 0,
        }
    }

    /// The connection with the open transaction: what queries are executed on.
    pub fn conn(&mut self) -> &mut S::Connection {
        S::connection(&mut self.transaction)
    }

    /// The transaction itself, for helpers that want one.
    pub fn tx(&mut self) -> &mut S::Transaction<'c> {
        &mut self.transaction
    }

    /// What is known about the message being handled.
    pub fn metadata(&self) -> &'c Metadata {
        self.metadata
    }

    /// Publishes an event in this transaction; correlation, causation and trace context are
    /// taken over from the message being handled. Nothing happens until the result is awaited.
    pub fn publish<'a, E: Event>(&'a mut self, event: &E) -> Outgoing<'a, S> {
        self.published += 1;
        let connection = S::connection(&mut self.transaction);
        self.dispatcher
            .outgoing(Ok(connection), event)
            .caused_by(self.metadata)
    }

    /// Sends a command in this transaction, otherwise like [`publish`](Self::publish).
    pub fn send<'a, C: Command>(&'a mut self, command: &C) -> Outgoing<'a, S> {
        self.published += 1;
        let connection = S::connection(&mut self.transaction);
        self.dispatcher
            .outgoing(Ok(connection), command)
            .caused_by(self.metadata)
    }

    /// Whether anything was published, so that the relay must be woken after the commit.
    pub fn has_published(&self) -> bool {
        self.published > 0
    }

    /// Executes an idempotent command as a part of this transaction and returns its reply: see
    /// [`Dispatcher::execute_in`]. Correlation and trace context are taken over from the message
    /// being handled.
    pub fn execute<'a, R>(
        &'a mut self,
        command: impl Command<Reply = R>,
    ) -> ExecuteIn<'a, 'c, S, R> {
        // The command may publish.
        self.published += 1;
        self.dispatcher
            .execute_in(&mut self.transaction, command)
            .caused_by(self.metadata)
    }

    /// The same inside a savepoint of its own.
    pub(crate) async fn nested(&mut self) -> Result<Context<'_, S>, StoreError> {
        let transaction = S::nested(&mut self.transaction).await?;
        Ok(Context::new(transaction, self.dispatcher, self.metadata))
    }

    /// A part of the transaction has published.
    pub(crate) fn also_published(&mut self, published: bool) {
        self.published += usize::from(published);
    }

    /// Gives the transaction back; the runtime commits it.
    pub fn into_transaction(self) -> S::Transaction<'c> {
        self.transaction
    }
}

/// A context whose transaction opens when the handler asks for it, so that slow work outside the
/// database (an HTTP call, say) holds no connection and no locks.
///
/// ```ignore
/// #[handler]
/// async fn capture(order: OrderPlaced, lazy: &mut LazyContext<'_>) -> anyhow::Result<()> {
///     let receipt = payment_provider.capture(order.order_id).await?;   // no transaction yet
///     let cx = lazy.begin().await?;                                    // opened and fenced now
///     sqlx::query("INSERT INTO receipts …").execute(cx.conn()).await?;
///     Ok(())
/// }
/// ```
///
/// The outside work is at-least-once; give the provider an idempotency key such as the message id.
pub struct LazyContext<'c, S: Store> {
    slot: Option<&'c mut Option<S::Session>>,
    options: &'c TransactionOptions,
    dispatcher: &'c Dispatcher<S>,
    metadata: &'c Metadata,
    context: Option<Context<'c, S>>,
}

impl<'c, S: Store> LazyContext<'c, S> {
    /// Puts a context together; the runtime does this.
    pub fn new(
        slot: &'c mut Option<S::Session>,
        options: &'c TransactionOptions,
        dispatcher: &'c Dispatcher<S>,
        metadata: &'c Metadata,
    ) -> Self {
        Self {
            slot: Some(slot),
            options,
            dispatcher,
            metadata,
            context: None,
        }
    }

    /// What is known about the message being handled.
    pub fn metadata(&self) -> &'c Metadata {
        self.metadata
    }

    /// Opens the transaction; a second call gives the same one again.
    ///
    /// # Errors
    /// When the database is away; return the error and the message is tried again without
    /// counting an attempt.
    pub async fn begin(&mut self) -> Result<&mut Context<'c, S>, StoreError> {
        if let Some(slot) = self.slot.take() {
            let store = self.dispatcher.store();
            let session = slot.insert(store.open().await?);
            let transaction = store.begin(session, self.options).await?;
            self.context = Some(Context::new(transaction, self.dispatcher, self.metadata));
        }
        self.context.as_mut().ok_or_else(|| {
            StoreError::message(
                crate::StoreErrorKind::Unavailable,
                "an earlier `begin` of this handler failed; return its error",
            )
        })
    }

    /// The context, if the handler opened it; the runtime commits it.
    pub fn into_context(self) -> Option<Context<'c, S>> {
        self.context
    }
}
