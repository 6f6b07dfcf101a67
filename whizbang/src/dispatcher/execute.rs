//! Executing an idempotent command: once for each key, the same answer for every repeat.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use rand::RngExt;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    Dispatcher, Guarded,
    command::{
        CONFLICT_RETRIES, CommandFailure, CommandOutcome, END_WITHIN, already_done, command_run,
        hexadecimal, inside, panic_text, run_command,
    },
    turns::{Settled, Turn},
};
use crate::{
    BoxError, Context, ExecuteError, HandlerFailure, Metadata, Payload,
    handler::{CommandSpec, Inputs},
    registry::Handler,
    store::{
        CommandAnswer, CommandRun, Isolation, Store, StoreError, StoreErrorKind, StoreResult,
        TransactionOptions,
    },
};

/// The pauses between looks at a key that somebody else works on.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

impl<S: Store> Dispatcher<S> {
    pub(super) fn command_handler(
        &self,
        name: &'static str,
    ) -> Result<Arc<Handler<S>>, ExecuteError> {
        let handler = self.inner.handlers.for_command(name);
        handler.cloned().ok_or(ExecuteError::NoHandler(name))
    }
}

/// One command and its handler.
pub(super) struct CommandCall<'a, S: Store> {
    dispatcher: &'a Dispatcher<S>,
    handler: &'a Handler<S>,
    command: CommandSpec,
    payload: &'a Payload,
    metadata: &'a Metadata,
    run: CommandRun,
}

/// What one try found.
enum Try {
    Answer(CommandAnswer),
    Busy,
    Conflict(StoreError),
}

/// How long to wait for somebody else, and how long it has been.
struct Patience {
    began: Instant,
    longest: Duration,
    pause: Duration,
}

impl Patience {
    fn new(longest: Duration) -> Self {
        Self {
            began: Instant::now(),
            longest,
            pause: SHORTEST_PAUSE,
        }
    }

    fn at_its_end(&self) -> ExecuteError {
        ExecuteError::InProgress {
            waited: self.longest,
        }
    }

    async fn pause(&mut self) -> Result<(), ExecuteError> {
        if self.began.elapsed() + self.pause > self.longest {
            return Err(self.at_its_end());
        }
        let jitter = rand::rng().random_range(0.5..=1.0);
        tokio::time::sleep(self.pause.mul_f64(jitter)).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }
}

impl<'a, S: Store> CommandCall<'a, S> {
    pub(super) fn new(
        dispatcher: &'a Dispatcher<S>,
        handler: &'a Handler<S>,
        payload: &'a Payload,
        metadata: &'a Metadata,
    ) -> Result<Self, ExecuteError> {
        let spec = &handler.spec;
        let command = handler
            .command
            .ok_or(ExecuteError::NotIdempotent(spec.message))?;
        let inputs = Inputs::new(payload, metadata, &dispatcher.inner.states);
        let run = command_run(&command, inputs).map_err(failed)?;
        Ok(Self {
            dispatcher,
            handler,
            command,
            payload,
            metadata,
            run,
        })
    }

    /// Executes it in a transaction of its own, or waits for the one who does.
    pub(super) async fn once_for_key(&self, wait: Duration) -> Result<CommandAnswer, ExecuteError> {
        let mut patience = Patience::new(wait);
        let turn = Turn::of(&self.dispatcher.inner.executions, &self.run);
        let mut settled = match turn.place.try_lock() {
            Ok(settled) => settled,
            Err(_taken) => tokio::time::timeout(wait, turn.place.lock())
                .await
                .map_err(|_elapsed| patience.at_its_end())?,
        };
        // Whoever was before us has committed the answer.
        if let Some(known) = &*settled {
            return self.same_as(known);
        }
        let mut conflicts = 0;
        loop {
            match self.attempt().await? {
                Try::Answer(answer) => {
                    *settled = Some(Settled {
                        fingerprint: self.run.fingerprint,
                        answer: answer.clone(),
                    });
                    return Ok(answer);
                }
                Try::Conflict(error) if conflicts >= CONFLICT_RETRIES => {
                    return Err(ExecuteError::Store(error));
                }
                Try::Conflict(_) => conflicts += 1,
                Try::Busy => patience.pause().await?,
            }
        }
    }

    fn same_as(&self, known: &Settled) -> Result<CommandAnswer, ExecuteError> {
        match known.fingerprint == self.run.fingerprint {
            true => Ok(known.answer.clone()),
            false => Err(self.reused(&known.fingerprint)),
        }
    }

    async fn attempt(&self) -> Result<Try, ExecuteError> {
        let inner = &self.dispatcher.inner;
        let options = TransactionOptions {
            fence: Uuid::now_v7(),
            timeout: self.handler.policy.timeout,
            isolation: Isolation::ReadCommitted,
        };
        let mut session = Guarded::<S>::new(inner.store.open().await?);
        let transaction = inner.store.begin(session.get()?, &options).await?;
        let mut context = Context::new(transaction, self.dispatcher, self.metadata);
        let outcome = self.run_in(&mut context).await;
        let published = context.has_published();
        let transaction = context.into_transaction();
        if let Ok(CommandOutcome::Executed(answer)) = outcome {
            let committed = self.in_time(S::commit(transaction)).await;
            committed.map_err(|error| match error.kind {
                StoreErrorKind::CommitUnknown => ExecuteError::Unknown(error),
                _ => ExecuteError::Store(error),
            })?;
            session.keep();
            if published {
                inner.relay_hint.committed();
            }
            return Ok(Try::Answer(answer));
        }
        // A timeout may leave a statement running: the connection is closed with the guard.
        let busy = matches!(outcome, Err(ExecuteError::Timeout(_)));
        if !busy && self.in_time(S::rollback(transaction)).await.is_ok() {
            session.keep();
        }
        match outcome {
            Ok(outcome) => self.settle(outcome),
            Err(ExecuteError::Store(error)) if error.kind == StoreErrorKind::Conflict => {
                Ok(Try::Conflict(error))
            }
            Err(error) => Err(error),
        }
    }

    /// Executes it in the caller's transaction, or waits there for the one who does.
    pub(super) async fn within(
        &self,
        transaction: &mut S::Transaction<'_>,
        wait: Duration,
    ) -> Result<CommandAnswer, ExecuteError> {
        let mut patience = Patience::new(wait);
        loop {
            match self.attempt_within(transaction).await? {
                Try::Answer(answer) => return Ok(answer),
                Try::Conflict(error) => return Err(ExecuteError::RetryTransaction(Some(error))),
                Try::Busy => patience.pause().await?,
            }
        }
    }

    async fn attempt_within(
        &self,
        transaction: &mut S::Transaction<'_>,
    ) -> Result<Try, ExecuteError> {
        let part = S::nested(transaction).await?;
        let mut context = Context::new(part, self.dispatcher, self.metadata);
        let outcome = self.run_in(&mut context).await;
        let part = context.into_transaction();
        match outcome {
            Ok(CommandOutcome::Executed(answer)) => {
                S::commit(part).await.map_err(inside)?;
                Ok(Try::Answer(answer))
            }
            Ok(outcome) => {
                let rolled_back = S::rollback(part).await;
                // What the handler did to the transaction matters more than how it ends.
                let settled = self.settle(outcome)?;
                rolled_back?;
                Ok(settled)
            }
            Err(ExecuteError::Store(error)) if error.kind == StoreErrorKind::Conflict => {
                Ok(Try::Conflict(error))
            }
            // A statement may be running: it is waited for when the caller goes on.
            Err(error @ ExecuteError::Timeout(_)) => Err(error),
            Err(error) => match S::rollback(part).await {
                Ok(()) => Err(error),
                Err(lost) if lost.kind == StoreErrorKind::Unavailable => Err(lost.into()),
                // The savepoint is gone, and with it the transaction that it was in.
                Err(_gone) => Err(ExecuteError::Unfenced),
            },
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

    async fn run_in(&self, context: &mut Context<'_, S>) -> Result<CommandOutcome, ExecuteError> {
        let store = &self.dispatcher.inner.store;
        let timeout = self.handler.policy.timeout;
        let inputs = Inputs::new(self.payload, self.metadata, &self.dispatcher.inner.states);
        let work = run_command(store, context, &self.run, self.handler, inputs);
        let guarded = AssertUnwindSafe(tokio::time::timeout(timeout, work)).catch_unwind();
        match guarded.await {
            Err(panic) => Err(ExecuteError::Panicked(panic_text(&*panic))),
            Ok(Err(_elapsed)) => Err(ExecuteError::Timeout(timeout)),
            Ok(Ok(outcome)) => outcome.map_err(|failure| self.failed_in(failure)),
        }
    }

    fn failed_in(&self, failure: CommandFailure) -> ExecuteError {
        let failure = match failure {
            CommandFailure::Store(error) => return ExecuteError::Store(error),
            CommandFailure::Handler(failure) => failure,
        };
        if let Some(constraint) = already_done(self.handler, &failure) {
            return ExecuteError::AlreadyDone { constraint };
        }
        match failure {
            // A conflict inside the handler is repeated like one of our own.
            HandlerFailure::Returned(error)
                if S::classify(&*error) == Some(StoreErrorKind::Conflict) =>
            {
                let what = "another transaction was in the way";
                ExecuteError::Store(StoreError::new(StoreErrorKind::Conflict, what, error))
            }
            other => failed(other),
        }
    }

    fn settle(&self, outcome: CommandOutcome) -> Result<Try, ExecuteError> {
        match outcome {
            CommandOutcome::Executed(answer) | CommandOutcome::Repeated(answer) => {
                Ok(Try::Answer(answer))
            }
            CommandOutcome::Busy => Ok(Try::Busy),
            CommandOutcome::Isolated => Err(ExecuteError::RetryTransaction(None)),
            CommandOutcome::Reused { stored } => Err(self.reused(&stored)),
            CommandOutcome::Unfenced => Err(ExecuteError::Unfenced),
            CommandOutcome::Unfinished => Err(ExecuteError::Unfinished {
                scope: self.run.scope.clone(),
                key: self.run.key.as_str().to_owned(),
            }),
        }
    }

    fn reused(&self, stored: &[u8]) -> ExecuteError {
        ExecuteError::KeyReused {
            scope: self.run.scope.clone(),
            key: self.run.key.as_str().to_owned(),
            stored: hexadecimal(stored),
            given: hexadecimal(&self.run.fingerprint),
        }
    }

    /// Reads what is recorded: a reply, or an error that is the answer.
    pub(super) fn reply<R: DeserializeOwned>(
        &self,
        answer: CommandAnswer,
    ) -> Result<R, ExecuteError> {
        let unfit = |source| ExecuteError::Reply {
            key: self.run.key.as_str().to_owned(),
            source,
        };
        let error = match answer {
            CommandAnswer::Reply(reply) => {
                let text = reply.as_deref().unwrap_or("null");
                return serde_json::from_str(text).map_err(unfit);
            }
            CommandAnswer::Error(error) => error,
        };
        let error = match self.command.stored_error {
            Some(read) => read(&error).map_err(unfit)?,
            // An older version of the handler kept it.
            None => BoxError::from(error),
        };
        Err(ExecuteError::Refused(error))
    }
}

fn failed(failure: HandlerFailure) -> ExecuteError {
    match failure {
        HandlerFailure::Returned(error) | HandlerFailure::Refused { error, .. } => {
            ExecuteError::Handler(error)
        }
        HandlerFailure::Key(error) => ExecuteError::Key(error),
        HandlerFailure::Undecodable(error) => ExecuteError::Decode(error),
        other => ExecuteError::Handler(Box::new(other)),
    }
}
