//! The one path of a command, whether executed or taken from the inbox: key first, then the user's
//! code, then what it came to, all in one transaction.

use std::time::Duration;

use crate::{
    Context, HandlerFailure,
    handler::{Call, CommandSpec, HandlerResult, Inputs},
    registry::Handler,
    store::{
        CommandAnswer, CommandRun, CommandState, Store, StoreError, StoreErrorKind, StoreResult,
    },
};

/// Conflicts with other transactions that are repeated at once before they count as an error.
pub(crate) const CONFLICT_RETRIES: u32 = 5;

/// Completing and committing are given the handler's timeout, and this at least.
pub(crate) const END_WITHIN: Duration = Duration::from_secs(5);

/// How a command ended, on any of its paths.
#[derive(Debug)]
pub(crate) enum CommandOutcome {
    /// The handler ran; what it came to is written, the transaction still open.
    Executed(CommandAnswer),
    /// It had run before.
    Repeated(CommandAnswer),
    /// The key belongs to another payload.
    Reused {
        /// Fingerprint of the payload that was executed.
        stored: Vec<u8>,
    },
    /// Somebody executes it right now.
    Busy,
    /// This snapshot cannot see what happened.
    Isolated,
    /// Begun before and never ended.
    Unfinished,
    /// The handler ended the transaction itself.
    Unfenced,
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

/// Runs the command in the transaction of `context`, or finds what is known of its key.
pub(crate) async fn run_command<S: Store>(
    store: &S,
    context: &mut Context<'_, S>,
    run: &CommandRun,
    handler: &Handler<S>,
    inputs: Inputs<'_>,
) -> Result<CommandOutcome, CommandFailure> {
    match store.begin_command(context.conn(), run).await? {
        CommandState::Fresh => {}
        CommandState::Done(answer) => return Ok(CommandOutcome::Repeated(answer)),
        CommandState::Reused { stored } => return Ok(CommandOutcome::Reused { stored }),
        CommandState::Busy => return Ok(CommandOutcome::Busy),
        CommandState::Isolated => return Ok(CommandOutcome::Isolated),
        CommandState::Unfinished => return Ok(CommandOutcome::Unfinished),
    }
    let keeps_errors = handler.command.and_then(|command| command.stored_error);
    let ran = match keeps_errors {
        None => {
            let reply = call_in(handler.call, context, inputs).await;
            Ran::Here(reply.map_err(CommandFailure::Handler)?)
        }
        Some(_) => call_in_savepoint(store, context, run, handler.call, inputs).await?,
    };
    let answer = match ran {
        Ran::Here(reply) => CommandAnswer::Reply(reply),
        Ran::Refused(json) => CommandAnswer::Error(json),
        Ran::Recorded(outcome) => return Ok(outcome),
    };
    record(store, context, run, answer)
        .await
        .map_err(Into::into)
}

/// What the user's code came to.
enum Ran {
    /// Its reply, to be recorded.
    Here(Option<String>),
    /// An error to be recorded; its writes are gone.
    Refused(String),
    /// All done.
    Recorded(CommandOutcome),
}

async fn record<S: Store>(
    store: &S,
    context: &mut Context<'_, S>,
    run: &CommandRun,
    answer: CommandAnswer,
) -> StoreResult<CommandOutcome> {
    let recorded = store.finish_command(context.conn(), run, &answer).await?;
    Ok(match recorded {
        true => CommandOutcome::Executed(answer),
        false => CommandOutcome::Unfenced,
    })
}

/// Calls a handler whose errors may be its answer: what it has written then is rolled back to a
/// savepoint behind the key, and the key stays ours until the one commit.
async fn call_in_savepoint<S: Store>(
    store: &S,
    context: &mut Context<'_, S>,
    run: &CommandRun,
    call: Call<S>,
    inputs: Inputs<'_>,
) -> Result<Ran, CommandFailure> {
    let part = context.nested().await?;
    let (ran, published) = call_part(store, part, run, call, inputs).await?;
    context.also_published(published);
    Ok(ran)
}

/// Also says whether the part has published.
async fn call_part<S: Store>(
    store: &S,
    mut part: Context<'_, S>,
    run: &CommandRun,
    call: Call<S>,
    inputs: Inputs<'_>,
) -> Result<(Ran, bool), CommandFailure> {
    let failure = match call_in(call, &mut part, inputs).await {
        Ok(reply) => {
            let published = part.has_published();
            let outcome = record(store, &mut part, run, CommandAnswer::Reply(reply)).await?;
            if let CommandOutcome::Executed(_) = outcome {
                S::commit(part.into_transaction()).await.map_err(inside)?;
            }
            return Ok((Ran::Recorded(outcome), published));
        }
        Err(failure) => failure,
    };
    match failure {
        HandlerFailure::Refused { error, .. } if is_the_databases::<S>(&*error) => {
            Err(CommandFailure::Handler(HandlerFailure::Returned(error)))
        }
        HandlerFailure::Refused { json, .. } => {
            S::rollback(part.into_transaction()).await?;
            Ok((Ran::Refused(json), false))
        }
        other => Err(CommandFailure::Handler(other)),
    }
}

/// Whether the database was in the way, which is nobody's answer: the next try may succeed.
fn is_the_databases<S: Store>(error: &(dyn std::error::Error + 'static)) -> bool {
    use StoreErrorKind::{Aborted, CommitUnknown, Conflict, Unavailable};
    matches!(
        S::classify(error),
        Some(Conflict | Unavailable | Aborted | CommitUnknown)
    )
}

/// What is lost at the end of a savepoint is not the outcome of a commit.
pub(super) fn inside(mut error: StoreError) -> StoreError {
    if error.kind == StoreErrorKind::CommitUnknown {
        error.kind = StoreErrorKind::Unavailable;
    }
    error
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

/// What the key of this call is, and what it is called with.
pub(crate) fn command_run(
    command: &CommandSpec,
    inputs: Inputs<'_>,
) -> Result<CommandRun, HandlerFailure> {
    Ok(CommandRun {
        scope: command.scope.to_owned(),
        key: (command.key)(inputs)?,
        fingerprint: inputs.payload().fingerprint(),
        version: command.version.to_owned(),
    })
}

/// The constraint, if the handler says that its violation means "already done".
pub(crate) fn already_done<S: Store>(
    handler: &Handler<S>,
    failure: &HandlerFailure,
) -> Option<String> {
    let named = handler.spec.options.already_done;
    let (HandlerFailure::Returned(error) | HandlerFailure::Refused { error, .. }) = failure else {
        return None;
    };
    let constraint = S::violated_unique(&**error)?;
    named.contains(&constraint).then(|| constraint.to_owned())
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
