//! Executing an idempotent command: once for each key, the same reply for every repeat.

use std::{
    collections::HashMap,
    future::IntoFuture,
    marker::PhantomData,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use rand::RngExt;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use uuid::Uuid;

use super::{Dispatcher, Guarded};
use crate::{
    Command, Context, Envelope, ExecuteError, HandlerFailure, Metadata, Payload, PublishError,
    handler::{Call, CommandSpec, HandlerResult, Inputs},
    registry::Handler,
    store::{
        CommandRun, CommandState, Isolation, Store, StoreError, StoreErrorKind, StoreResult,
        TransactionOptions,
    },
};

/// Executions under way in this process, so that repeats wait here and not on connections.
pub(super) type Executions = Mutex<Turns>;
/// One lock for each scope and key at work.
type Turns = HashMap<(String, String), Arc<tokio::sync::Mutex<()>>>;

/// Conflicts with other transactions that are retried at once, before they become an error.
const CONFLICT_RETRIES: u32 = 5;

/// Committing is given the handler's timeout, and this at least.
const END_WITHIN: Duration = Duration::from_secs(5);

/// A command that is about to be executed; awaiting it executes it.
#[must_use = "nothing is executed until this is awaited"]
pub struct Execute<'a, S: Store, R> {
    dispatcher: &'a Dispatcher<S>,
    name: &'static str,
    envelope: Result<Envelope, PublishError>,
    correlation_id: Option<Uuid>,
    traceparent: Option<String>,
    wait: Duration,
    // The command is encoded already, and only what it answers is named: were the command's type
    // part of this one, an event in its place would be reported at every later use as well.
    reply: PhantomData<fn() -> R>,
}

impl<S: Store> Dispatcher<S> {
    /// Executes an idempotent command now, in a transaction of its own, and returns its reply.
    ///
    /// The first call with a key runs the handler; every later call with the same key and payload
    /// returns the stored reply. A call that meets a running execution waits for it, without
    /// holding a connection. If the handler fails, everything is rolled back and the key is free.
    pub fn execute<R>(&self, command: impl Command<Reply = R>) -> Execute<'_, S, R> {
        Execute {
            dispatcher: self,
            name: name_of(&command),
            envelope: self.envelope(&command),
            correlation_id: None,
            traceparent: None,
            wait: self.inner.execute_wait,
            reply: PhantomData,
        }
    }
}

impl<'a, S: Store, R: DeserializeOwned> Execute<'a, S, R> {
    /// Sets the correlation id of what the handler publishes.
    pub fn correlation(mut self, id: Uuid) -> Self {
        self.correlation_id = Some(id);
        self
    }

    /// Sets the W3C trace context of what the handler publishes.
    pub fn traceparent(mut self, value: impl Into<String>) -> Self {
        self.traceparent = Some(value.into());
        self
    }

    /// How long to wait for another execution of the same key.
    pub fn wait(mut self, longest: Duration) -> Self {
        self.wait = longest;
        self
    }

    async fn run(self) -> Result<R, ExecuteError> {
        let dispatcher = self.dispatcher;
        let envelope = self.envelope?;
        let (handler, command) = dispatcher.command_handler(self.name)?;
        let metadata = Metadata {
            message_id: envelope.id,
            message_type: envelope.message_type.clone(),
            handler: handler.spec.name.to_owned(),
            stream: envelope.stream.clone(),
            correlation_id: self.correlation_id.or(envelope.correlation_id),
            causation_id: None,
            attempt: 1,
            received_at: None,
            headers: crate::Headers {
                traceparent: self.traceparent.clone(),
                ..envelope.headers.clone()
            },
        };
        let call = CommandCall {
            dispatcher,
            handler: &handler,
            command,
            payload: &envelope.payload,
            metadata: &metadata,
        };
        let reply = call.once_for_key(self.wait).await?;
        let text = reply.as_deref().unwrap_or("null");
        serde_json::from_str(text).map_err(|source| ExecuteError::Reply {
            key: call
                .key()
                .map(|key| key.as_str().to_owned())
                .unwrap_or_default(),
            source,
        })
    }
}

impl<'a, S: Store, R: DeserializeOwned + Send + 'static> IntoFuture for Execute<'a, S, R> {
    type Output = Result<R, ExecuteError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl<S: Store> Dispatcher<S> {
    fn command_handler(
        &self,
        name: &'static str,
    ) -> Result<(Arc<Handler<S>>, CommandSpec), ExecuteError> {
        let handler = self
            .inner
            .handlers
            .for_command(name)
            .ok_or(ExecuteError::NoHandler(name))?;
        let command = handler.command.ok_or(ExecuteError::NotIdempotent(name))?;
        Ok((Arc::clone(handler), command))
    }
}

fn name_of<C: Command>(_: &C) -> &'static str {
    C::NAME
}

struct CommandCall<'a, S: Store> {
    dispatcher: &'a Dispatcher<S>,
    handler: &'a Handler<S>,
    command: CommandSpec,
    payload: &'a Payload,
    metadata: &'a Metadata,
}

/// What one try found.
enum Try {
    Reply(Option<String>),
    Busy,
    Conflict(StoreError),
}

impl<S: Store> CommandCall<'_, S> {
    fn inputs(&self) -> Inputs<'_> {
        Inputs::new(self.payload, self.metadata, &self.dispatcher.inner.states)
    }

    fn key(&self) -> Result<crate::CommandKey, ExecuteError> {
        (self.command.key)(self.inputs()).map_err(failed)
    }

    async fn once_for_key(&self, wait: Duration) -> Result<Option<String>, ExecuteError> {
        let run = CommandRun {
            scope: self.command.scope.to_owned(),
            key: self.key()?,
            fingerprint: self.payload.fingerprint(),
        };
        let began = Instant::now();
        let turn = self.dispatcher.inner.turn(&run);
        let in_progress = || ExecuteError::InProgress { waited: wait };
        let held = tokio::time::timeout(wait, turn.lock.lock()).await;
        let _held = held.map_err(|_| in_progress())?;
        let mut pause = Duration::from_millis(5);
        let mut conflicts = 0;
        loop {
            match self.attempt(&run).await? {
                Try::Reply(reply) => return Ok(reply),
                Try::Conflict(error) if conflicts >= CONFLICT_RETRIES => {
                    return Err(ExecuteError::Store(error));
                }
                Try::Conflict(_) => conflicts += 1,
                Try::Busy => {}
            }
            if began.elapsed() + pause > wait {
                return Err(in_progress());
            }
            tokio::time::sleep(jittered(pause)).await;
            pause = (pause * 2).min(Duration::from_millis(200));
        }
    }

    async fn attempt(&self, run: &CommandRun) -> Result<Try, ExecuteError> {
        let inner = &self.dispatcher.inner;
        let options = TransactionOptions {
            fence: Uuid::now_v7(),
            timeout: self.handler.policy.timeout,
            isolation: Isolation::ReadCommitted,
        };
        let mut session = Guarded::<S>::new(inner.store.open().await?);
        let transaction = inner.store.begin(session.get()?, &options).await?;
        let mut context = Context::new(transaction, self.dispatcher, self.metadata);
        let outcome = self.run_in(&mut context, run, &options).await;
        let published = context.has_published();
        let transaction = context.into_transaction();
        match outcome {
            Ok(CommandOutcome::Executed(reply)) => {
                let committed = self.in_time(S::commit(transaction)).await;
                committed.map_err(|error| {
                    if error.kind == StoreErrorKind::CommitUnknown {
                        ExecuteError::Unknown(error)
                    } else {
                        ExecuteError::Store(error)
                    }
                })?;
                session.keep();
                if published {
                    inner.relay_hint.committed();
                }
                Ok(Try::Reply(reply))
            }
            Ok(other) => {
                if self.in_time(S::rollback(transaction)).await.is_ok() {
                    session.keep();
                }
                settle(other, run)
            }
            Err(ExecuteError::Store(error)) if error.kind == StoreErrorKind::Conflict => {
                if self.in_time(S::rollback(transaction)).await.is_ok() {
                    session.keep();
                }
                Ok(Try::Conflict(error))
            }
            // A timeout may leave a statement running: the connection is closed with the guard.
            Err(error @ ExecuteError::Timeout(_)) => Err(error),
            Err(error) => {
                if self.in_time(S::rollback(transaction)).await.is_ok() {
                    session.keep();
                }
                Err(error)
            }
        }
    }

    /// Waits for the end of a transaction, but not for ever on a connection that has gone silent;
    /// the guard closes it then.
    async fn in_time(&self, end: impl Future<Output = StoreResult<()>>) -> StoreResult<()> {
        let longest = self.handler.policy.timeout.max(END_WITHIN);
        let ended = tokio::time::timeout(longest, end).await;
        ended.unwrap_or_else(|_elapsed| {
            Err(StoreError::message(
                StoreErrorKind::CommitUnknown,
                format!("the database did not answer the end of a transaction within {longest:?}"),
            ))
        })
    }

    async fn run_in(
        &self,
        context: &mut Context<'_, S>,
        run: &CommandRun,
        options: &TransactionOptions,
    ) -> Result<CommandOutcome, ExecuteError> {
        let store = &self.dispatcher.inner.store;
        let call = self.handler.call;
        let timeout = self.handler.policy.timeout;
        let work = run_command(store, context, run, call, self.inputs());
        let guarded = AssertUnwindSafe(tokio::time::timeout(timeout, work)).catch_unwind();
        let outcome = match guarded.await {
            Err(panic) => return Err(ExecuteError::Panicked(panic_text(&*panic))),
            Ok(Err(_elapsed)) => return Err(ExecuteError::Timeout(timeout)),
            Ok(Ok(outcome)) => outcome.map_err(|failure| match failure {
                CommandFailure::Handler(failure) => failed_in::<S>(failure),
                CommandFailure::Store(error) => ExecuteError::Store(error),
            })?,
        };
        if let CommandOutcome::Executed(_) = outcome {
            check_fence(store, context, options).await?;
        }
        Ok(outcome)
    }
}

fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(rand::rng().random_range(0.5..=1.0))
}

/// The completion of no row at all still checks the fence.
async fn check_fence<S: Store>(
    store: &S,
    context: &mut Context<'_, S>,
    options: &TransactionOptions,
) -> Result<(), ExecuteError> {
    if store.fenced(context.conn(), options.fence).await? {
        Ok(())
    } else {
        Err(ExecuteError::Unfenced)
    }
}

fn settle(outcome: CommandOutcome, run: &CommandRun) -> Result<Try, ExecuteError> {
    match outcome {
        CommandOutcome::Executed(reply) | CommandOutcome::Repeated(reply) => Ok(Try::Reply(reply)),
        CommandOutcome::Busy => Ok(Try::Busy),
        CommandOutcome::Isolated => Err(ExecuteError::RetryTransaction),
        CommandOutcome::Reused { stored } => Err(ExecuteError::KeyReused {
            scope: run.scope.clone(),
            key: run.key.as_str().to_owned(),
            stored: hexadecimal(&stored),
            given: hexadecimal(&run.fingerprint),
        }),
    }
}

fn failed(failure: HandlerFailure) -> ExecuteError {
    match failure {
        HandlerFailure::Returned(error) => ExecuteError::Handler(error),
        HandlerFailure::Key(error) => ExecuteError::Key(error),
        other => ExecuteError::Handler(Box::new(other)),
    }
}

/// A conflict with another transaction inside the handler is repeated like one of our own.
fn failed_in<S: Store>(failure: HandlerFailure) -> ExecuteError {
    match failure {
        HandlerFailure::Returned(error)
            if S::classify(&*error) == Some(StoreErrorKind::Conflict) =>
        {
            let what = "another transaction was in the way";
            ExecuteError::Store(StoreError::new(StoreErrorKind::Conflict, what, error))
        }
        other => failed(other),
    }
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "the panic carried no text".to_owned());
    crate::error::storable_text(text)
}

/// How a command ended, on any of its paths.
#[derive(Debug)]
pub(crate) enum CommandOutcome {
    /// The handler ran; the reply is written, the transaction still open.
    Executed(Option<String>),
    /// It had run before.
    Repeated(Option<String>),
    /// The key belongs to another payload.
    Reused {
        /// Fingerprint of the payload that was executed.
        stored: Vec<u8>,
    },
    /// Somebody executes it right now.
    Busy,
    /// This snapshot cannot see what happened.
    Isolated,
}

/// Why a command did not end.
pub(crate) enum CommandFailure {
    Handler(HandlerFailure),
    Store(StoreError),
}

impl From<StoreError> for CommandFailure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// The one path of a command, whether executed or taken from the inbox: key first, then the
/// user's code, then the reply, all in the transaction of `context`.
pub(crate) async fn run_command<S: Store>(
    store: &S,
    context: &mut Context<'_, S>,
    run: &CommandRun,
    call: Call<S>,
    inputs: Inputs<'_>,
) -> Result<CommandOutcome, CommandFailure> {
    match store.begin_command(context.conn(), run).await? {
        CommandState::Fresh => {}
        CommandState::Done(reply) => return Ok(CommandOutcome::Repeated(reply)),
        CommandState::Reused { stored } => return Ok(CommandOutcome::Reused { stored }),
        CommandState::Busy => return Ok(CommandOutcome::Busy),
        CommandState::Isolated => return Ok(CommandOutcome::Isolated),
    }
    let reply = call_in(call, context, inputs)
        .await
        .map_err(CommandFailure::Handler)?;
    store
        .finish_command(context.conn(), run, reply.as_deref())
        .await?;
    Ok(CommandOutcome::Executed(reply))
}

async fn call_in<S: Store>(
    call: Call<S>,
    context: &mut Context<'_, S>,
    inputs: Inputs<'_>,
) -> HandlerResult {
    match call {
        Call::Transaction(handler) => handler(context, inputs).await,
        Call::Plain(handler) => handler(inputs).await,
        // The attribute refuses a lazy context on commands: the key must come first.
        Call::Lazy(_) => Err(HandlerFailure::LazyCommand),
    }
}

/// A place in the queue of one key.
struct Turn<'a> {
    lock: Arc<tokio::sync::Mutex<()>>,
    executions: &'a Executions,
    key: (String, String),
}

impl<S: Store> super::Inner<S> {
    fn turn(&self, run: &CommandRun) -> Turn<'_> {
        let key = (run.scope.clone(), run.key.as_str().to_owned());
        let mut executions = lock(&self.executions);
        let lock = Arc::clone(executions.entry(key.clone()).or_default());
        Turn {
            lock,
            executions: &self.executions,
            key,
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut executions = lock(self.executions);
        // The map's and this turn's: nobody else waits for the key.
        if Arc::strong_count(&self.lock) <= 2 {
            executions.remove(&self.key);
        }
    }
}

fn lock(executions: &Executions) -> std::sync::MutexGuard<'_, Turns> {
    // Nothing that can panic runs under the lock.
    executions.lock().unwrap_or_else(PoisonError::into_inner)
}
