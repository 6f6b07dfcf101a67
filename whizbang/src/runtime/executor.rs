//! Runs one message: open, call, complete, commit. Says how it ended; `run` acts on it.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;

use super::{counters::add, held::Holding, shared::Shared};
use crate::{
    Context, Decision, HandlerFailure, LazyContext, Metadata, StoreError, StoreErrorKind,
    StreamKey, decision_of,
    dispatcher::{
        CONFLICT_RETRIES, CommandFailure, CommandOutcome, END_WITHIN, Guarded, already_done,
        command_run, hexadecimal, panic_text, run_command,
    },
    error_chain,
    handler::{Call, CommandSpec, Inputs},
    registry::Handler,
    store::{CommandRun, Completion, Isolation, Store, TransactionOptions, Work},
};

/// How long an inbox row waits when its command is being executed by somebody else.
const BUSY_SNOOZE: Duration = Duration::from_millis(100);

/// How running one message ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Effects, outgoing messages and completion are committed. `more`: the stream is still held.
    Committed { more: bool },
    /// A handler without transaction returned; its completion is still to be written.
    Returned,
    /// An attempt failed.
    Failed { decision: Decision, error: String },
    /// Over for good, by a rule of the framework.
    Dead { reason: &'static str, error: String },
    /// Not now.
    NotNow(Duration),
    /// The lease belongs to somebody else.
    LeaseLost,
    /// The database is away, or nobody knows whether the commit went through.
    Away(StoreError),
    /// The service is being stopped and did not wait for it.
    Aborted,
}

/// One message in execution.
pub(crate) struct Execution<'a, S: Store> {
    pub(crate) shared: &'a Arc<Shared<S>>,
    pub(crate) handler: &'a Handler<S>,
    pub(crate) work: &'a Work,
    pub(crate) metadata: &'a Metadata,
    /// Whether no further row of the stream is in memory.
    pub(crate) last: bool,
    pub(crate) holding: &'a Holding,
}

/// Why one try in a transaction did not commit.
enum Miss {
    Outcome(Outcome),
    Conflict(String),
    /// A unique constraint says that the work was done before: rolled back, still to be completed.
    AlreadyDone,
}

/// What the user's code came to, before any completion.
enum Answer {
    Ready,
    Repeated,
    Miss(Miss),
}

pub(crate) fn metadata_of(work: &Work) -> Metadata {
    Metadata {
        message_id: work.lease.message_id,
        message_type: work.message_type.clone(),
        handler: work.lease.handler.clone(),
        stream: work
            .lease
            .stream_id
            .map(|id| StreamKey::from_parts(id, work.headers.stream.clone())),
        correlation_id: work.correlation_id,
        causation_id: work.causation_id,
        attempt: work.attempts.saturating_add(1),
        received_at: work.received_at,
        headers: work.headers.clone(),
    }
}

impl<S: Store> Execution<'_, S> {
    /// Runs the message. The connection is given back before the caller gives up its permit, so
    /// that runs never hold more connections than there are permits.
    pub(crate) async fn run(&self) -> Outcome {
        match self.handler.call {
            Call::Plain(call) if self.handler.command.is_none() => {
                self.plain(call(self.inputs())).await
            }
            _ => self.in_transaction().await,
        }
    }

    fn inputs(&self) -> Inputs<'_> {
        Inputs::new(&self.work.payload, self.metadata, &self.shared.states)
    }

    async fn plain(&self, call: crate::handler::HandlerFuture<'_>) -> Outcome {
        match self.supervised(call).await {
            Ok(Ok(_)) => Outcome::Returned,
            Ok(Err(failure)) if already_done(self.handler, &failure).is_some() => Outcome::Returned,
            Ok(Err(failure)) => failed(&failure),
            Err(outcome) => outcome,
        }
    }

    /// Runs user code within its timeout; a panic, the timeout, a lost lease and an abort end it.
    async fn supervised<T>(&self, work: impl Future<Output = T> + Send) -> Result<T, Outcome> {
        let timeout = self.handler.policy.timeout;
        let guarded = AssertUnwindSafe(tokio::time::timeout(timeout, work)).catch_unwind();
        tokio::select! {
            biased;
            answer = guarded => match answer {
                Ok(Ok(value)) => Ok(value),
                Ok(Err(_elapsed)) => Err(Outcome::Failed {
                    decision: Decision::Retry(None),
                    error: format!("the handler did not finish within its timeout of {timeout:?}"),
                }),
                Err(panic) => Err(Outcome::Failed {
                    decision: Decision::Retry(None),
                    error: format!("the handler panicked: {}", panic_text(&*panic)),
                }),
            },
            () = self.holding.until_lost() => Err(Outcome::LeaseLost),
            () = self.shared.stop.reached(super::stop::Phase::Aborting) => Err(Outcome::Aborted),
        }
    }

    async fn in_transaction(&self) -> Outcome {
        let mut conflicts = 0;
        let mut only_complete = false;
        loop {
            match self.attempt(only_complete).await {
                Ok(outcome) | Err(Miss::Outcome(outcome)) => return outcome,
                // What the second transaction comes to is final, so this ends.
                Err(Miss::AlreadyDone) => only_complete = true,
                Err(Miss::Conflict(error)) if conflicts >= CONFLICT_RETRIES => {
                    return Outcome::Failed {
                        decision: Decision::Retry(None),
                        error,
                    };
                }
                Err(Miss::Conflict(_)) => {
                    conflicts += 1;
                    add(&self.shared.counters.conflict_retries, 1);
                }
            }
        }
    }

    /// `only_complete`: the handler's work was done before, so it is not called again.
    async fn attempt(&self, only_complete: bool) -> Result<Outcome, Miss> {
        let options = TransactionOptions {
            fence: self.work.lease.token,
            timeout: self.handler.policy.timeout,
            isolation: Isolation::ReadCommitted,
        };
        if let Call::Lazy(call) = self.handler.call
            && !only_complete
        {
            return self.lazy(call, &options).await;
        }
        let store = &self.shared.store;
        let opened = match self.shared.warm_session() {
            Some(session) => session,
            None => store.open().await.map_err(away)?,
        };
        let mut guard = Guarded::<S>::new(opened);
        let transaction = store
            .begin(guard.get().map_err(away)?, &options)
            .await
            .map_err(away)?;
        let mut context = Context::new(transaction, &self.shared.dispatcher, self.metadata);
        let called = match only_complete {
            true => Ok(Answer::Repeated),
            false => self.supervised(self.call(&mut context)).await,
        };
        let answer = match called {
            Ok(answer) => answer,
            // The connection may be busy with a statement: the guard closes it.
            Err(outcome) => return Err(Miss::Outcome(outcome)),
        };
        let ended = self.end_in_time(context, answer).await;
        if ended.at_rest {
            guard.keep();
            if let Some(session) = guard.into_session() {
                self.shared.keep_session(session);
            }
        }
        ended.result
    }

    /// Calls the handler, with the key written first if it is an idempotent command.
    async fn call(&self, context: &mut Context<'_, S>) -> Answer {
        if let Some(command) = &self.handler.command {
            return self.command(context, command).await;
        }
        let result = match self.handler.call {
            Call::Transaction(call) => call(context, self.inputs()).await,
            Call::Plain(call) => call(self.inputs()).await,
            Call::Lazy(_) => Err(HandlerFailure::LazyCommand),
        };
        match result {
            Ok(_) => Answer::Ready,
            Err(failure) => Answer::Miss(self.missed(&failure)),
        }
    }

    async fn command(&self, context: &mut Context<'_, S>, command: &CommandSpec) -> Answer {
        let run = match command_run(command, self.inputs()) {
            Ok(run) => run,
            Err(failure) => return Answer::Miss(self.missed(&failure)),
        };
        let store = &self.shared.store;
        let ended = run_command(store, context, &run, self.handler, self.inputs()).await;
        let miss = match ended {
            Ok(CommandOutcome::Executed(_)) => return Answer::Ready,
            Ok(CommandOutcome::Repeated(_)) => return Answer::Repeated,
            Ok(CommandOutcome::Busy | CommandOutcome::Isolated) => {
                Miss::Outcome(Outcome::NotNow(BUSY_SNOOZE))
            }
            Ok(CommandOutcome::Unfenced) => Miss::Outcome(unfenced()),
            Ok(CommandOutcome::Unfinished) => Miss::Outcome(unfinished(&run)),
            Ok(CommandOutcome::Reused { stored }) => Miss::Outcome(key_reused(&run, &stored)),
            Err(CommandFailure::Handler(failure)) => self.missed(&failure),
            Err(CommandFailure::Store(error)) => store_miss(error),
        };
        Answer::Miss(miss)
    }

    fn missed(&self, failure: &HandlerFailure) -> Miss {
        match already_done(self.handler, failure) {
            Some(_constraint) => Miss::AlreadyDone,
            None => missed::<S>(failure),
        }
    }

    /// Ends the transaction, but does not wait for ever on a connection that has gone silent: the
    /// message would keep its slot and, through its renewed lease, be kept from everybody else.
    async fn end_in_time(&self, context: Context<'_, S>, answer: Answer) -> Ended {
        let longest = self.handler.policy.timeout.max(END_WITHIN);
        let end = tokio::time::timeout(longest, self.end(context, answer));
        end.await.unwrap_or_else(|_elapsed| Ended {
            at_rest: false,
            result: Err(away(StoreError::message(
                StoreErrorKind::CommitUnknown,
                format!("the database did not answer the end of a transaction within {longest:?}"),
            ))),
        })
    }

    /// Completes and commits, or rolls back.
    async fn end(&self, mut context: Context<'_, S>, answer: Answer) -> Ended {
        match answer {
            Answer::Ready | Answer::Repeated => {}
            Answer::Miss(miss) => {
                let miss = self.unless_unfenced(&mut context, miss).await;
                return roll_back::<S>(context, miss).await;
            }
        }
        let published = context.has_published();
        let lease = &self.work.lease;
        let store = &self.shared.store;
        let more = match store.complete(context.conn(), lease, self.last).await {
            Ok(Completion::Done) => false,
            Ok(Completion::More) => true,
            Ok(Completion::Lost) => {
                return roll_back::<S>(context, Miss::Outcome(Outcome::LeaseLost)).await;
            }
            Ok(Completion::Unfenced) => {
                return roll_back::<S>(context, Miss::Outcome(unfenced())).await;
            }
            Err(error) => return roll_back::<S>(context, store_miss(error)).await,
        };
        match S::commit(context.into_transaction()).await {
            Ok(()) => {
                if published {
                    self.shared.dispatcher.relay_hint().committed();
                }
                Ended {
                    at_rest: true,
                    result: Ok(Outcome::Committed { more }),
                }
            }
            Err(error) => Ended {
                at_rest: false,
                result: Err(store_miss(error)),
            },
        }
    }

    /// A handler that fails after it has ended its own transaction has committed what it wrote
    /// before: it must not run again. A transaction that an error has aborted cannot be asked; what a
    /// handler committed before it began that one stays unknown.
    async fn unless_unfenced(&self, context: &mut Context<'_, S>, miss: Miss) -> Miss {
        let store = &self.shared.store;
        let fence = self.work.lease.token;
        match store.fenced(context.conn(), fence).await {
            Ok(false) => Miss::Outcome(unfenced()),
            Ok(true) | Err(_) => miss,
        }
    }

    /// A handler that opens its transaction itself, after slow work outside of it.
    async fn lazy(
        &self,
        call: crate::handler::LazyFn<S>,
        options: &TransactionOptions,
    ) -> Result<Outcome, Miss> {
        let mut slot = None;
        let mut lazy = LazyContext::new(&mut slot, options, &self.shared.dispatcher, self.metadata);
        let answer = match self.supervised(call(&mut lazy, self.inputs())).await {
            Ok(Ok(_)) => Answer::Ready,
            Ok(Err(failure)) => Answer::Miss(self.missed(&failure)),
            Err(outcome) => {
                drop(lazy);
                if let Some(session) = slot {
                    S::discard(session);
                }
                return Err(Miss::Outcome(outcome));
            }
        };
        let Some(context) = lazy.into_context() else {
            // Its transaction was asked for and never began: who knows what the connection does.
            if let Some(session) = slot {
                S::discard(session);
            }
            return match answer {
                Answer::Miss(miss) => Err(miss),
                // It never opened a transaction: completed like any handler without one.
                Answer::Ready | Answer::Repeated => Ok(Outcome::Returned),
            };
        };
        let ended = self.end_in_time(context, answer).await;
        if let Some(session) = slot {
            if ended.at_rest {
                self.shared.keep_session(session);
            } else {
                S::discard(session);
            }
        }
        ended.result
    }
}

/// How a transaction ended, and whether its connection may be used again.
struct Ended {
    at_rest: bool,
    result: Result<Outcome, Miss>,
}

async fn roll_back<S: Store>(context: Context<'_, S>, miss: Miss) -> Ended {
    match S::rollback(context.into_transaction()).await {
        Ok(()) => Ended {
            at_rest: true,
            result: Err(miss),
        },
        // The connection is dead: the handler's error was the database's.
        Err(error) => Ended {
            at_rest: false,
            result: Err(match miss {
                Miss::Outcome(Outcome::Failed {
                    decision: Decision::Retry(_),
                    ..
                })
                | Miss::Conflict(_)
                | Miss::AlreadyDone => away(error),
                other => other,
            }),
        },
    }
}

fn key_reused(run: &CommandRun, stored: &[u8]) -> Outcome {
    Outcome::Dead {
        reason: "key_reused",
        error: format!(
            "key `{}` of `{}` was used for another payload before (stored {}, given {})",
            run.key.as_str(),
            run.scope,
            hexadecimal(stored),
            hexadecimal(&run.fingerprint)
        ),
    }
}

fn unfinished(run: &CommandRun) -> Outcome {
    Outcome::Dead {
        reason: "unfinished",
        error: format!(
            "key `{}` of `{}` was begun before and never ended, because the handler ended its own \
             transaction: what it wrote then may be committed; check the effects, delete the row \
             from wh_command_results, then requeue or discard this dead letter",
            run.key.as_str(),
            run.scope
        ),
    }
}

fn unfenced() -> Outcome {
    Outcome::Dead {
        reason: "unfenced",
        error: "the handler ended its own transaction with COMMIT or ROLLBACK: what it wrote \
                before may be committed although the message is not completed, so it is not run \
                again; remove the statement from the handler, check the effects, then requeue or \
                discard this dead letter"
            .to_owned(),
    }
}

/// A failure of a handler without transaction.
fn failed(failure: &HandlerFailure) -> Outcome {
    Outcome::Failed {
        decision: decision_of(cause_of(failure)),
        error: error_chain(cause_of(failure)),
    }
}

fn missed<S: Store>(failure: &HandlerFailure) -> Miss {
    let cause = cause_of(failure);
    match S::classify(cause) {
        Some(StoreErrorKind::Conflict) => Miss::Conflict(error_chain(cause)),
        Some(StoreErrorKind::Unavailable) => Miss::Outcome(Outcome::Away(StoreError::message(
            StoreErrorKind::Unavailable,
            error_chain(cause),
        ))),
        _ => Miss::Outcome(failed(failure)),
    }
}

/// The handler's own error, without our wrapper around it.
fn cause_of(failure: &HandlerFailure) -> &(dyn std::error::Error + 'static) {
    match failure {
        HandlerFailure::Returned(error) | HandlerFailure::Refused { error, .. } => &**error,
        other => other,
    }
}

fn store_miss(error: StoreError) -> Miss {
    match error.kind {
        StoreErrorKind::Conflict => Miss::Conflict(error_chain(&error)),
        StoreErrorKind::Aborted => Miss::Outcome(Outcome::Failed {
            decision: Decision::Retry(None),
            error: format!(
                "the handler returned Ok although a statement in its transaction had failed \
                 ({}); return the error, or put the statement into a savepoint",
                error_chain(&error)
            ),
        }),
        StoreErrorKind::Unavailable | StoreErrorKind::CommitUnknown => away(error),
        StoreErrorKind::Setup | StoreErrorKind::Data | StoreErrorKind::Other => {
            Miss::Outcome(Outcome::Failed {
                decision: Decision::Retry(None),
                error: error_chain(&error),
            })
        }
    }
}

fn away(error: StoreError) -> Miss {
    Miss::Outcome(Outcome::Away(error))
}
