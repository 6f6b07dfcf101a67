//! What users write to execute a command.

use std::{future::IntoFuture, marker::PhantomData, time::Duration};

use futures::future::BoxFuture;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::{Dispatcher, execute::CommandCall};
use crate::{Command, DecodeError, Envelope, ExecuteError, Metadata, Payload, store::Store};

/// The command and what is said about it. It is encoded already, and only what it answers is part
/// of the type: were the command's type, an event in its place would be reported at every later use
/// as well.
struct Request<R> {
    name: &'static str,
    envelope: Result<Envelope, ExecuteError>,
    wait: Duration,
    reply: PhantomData<fn() -> R>,
}

impl<R> Request<R> {
    fn edit(&mut self, change: impl FnOnce(&mut Envelope)) {
        if let Ok(envelope) = &mut self.envelope {
            change(envelope);
        }
    }
}

/// A command that is about to be executed; awaiting it executes it.
#[must_use = "nothing is executed until this is awaited"]
pub struct Execute<'a, S: Store, R> {
    dispatcher: &'a Dispatcher<S>,
    request: Request<R>,
}

/// A command that is about to be executed in a transaction of the caller's; awaiting it executes
/// it.
#[must_use = "nothing is executed until this is awaited"]
pub struct ExecuteIn<'a, 't, S: Store, R> {
    dispatcher: &'a Dispatcher<S>,
    transaction: &'a mut S::Transaction<'t>,
    request: Request<R>,
}

impl<S: Store> Dispatcher<S> {
    /// Executes an idempotent command now, in a transaction of its own, and returns its reply.
    ///
    /// The first call with a key runs the handler; every later call with the same key and payload
    /// returns the stored reply. A call that meets a running execution waits for it, without
    /// holding a connection. If the handler fails, everything is rolled back and the key is free,
    /// unless `store_error` keeps the error as the answer.
    ///
    /// Resolves to an [`ExecuteError`] that says for each case whether to try again, and how.
    pub fn execute<R>(&self, command: impl Command<Reply = R>) -> Execute<'_, S, R> {
        let request = self.request_of(&command);
        Execute {
            dispatcher: self,
            request,
        }
    }

    /// Like [`execute`](Self::execute) with the command as the client sent it.
    ///
    /// Repeats are compared by this very text, before fields that it leaves out are given their
    /// defaults. So a retry of an old request is still the same request after its type has gained
    /// an optional field.
    ///
    /// Resolves to [`ExecuteError::Decode`] if the text does not fit the command's type.
    pub fn execute_json<C: Command>(&self, json: &str) -> Execute<'_, S, C::Reply> {
        let request = self.request(C::NAME, self.envelope_of_json::<C>(json));
        Execute {
            dispatcher: self,
            request,
        }
    }

    /// Executes an idempotent command as a part of your own transaction and returns its reply:
    /// its effects, its key and its reply are there if, and only if, you commit.
    ///
    /// If the handler fails, what it has written is rolled back to a savepoint, the key is free
    /// and your transaction goes on. Until you commit or roll back, repeats of the command wait.
    /// A call that meets a running execution waits for it inside your transaction, for as long as
    /// [`wait`](ExecuteIn::wait) says; [`ExecuteError::InProgress`] then means: roll back, and try
    /// the whole transaction again. Above `READ COMMITTED` waiting would not help, since your
    /// snapshot could not see the result: then, and after any conflict with another transaction,
    /// it is [`ExecuteError::RetryTransaction`].
    pub fn execute_in<'a, 't, R>(
        &'a self,
        transaction: &'a mut S::Transaction<'t>,
        command: impl Command<Reply = R>,
    ) -> ExecuteIn<'a, 't, S, R> {
        let request = self.request_of(&command);
        ExecuteIn {
            dispatcher: self,
            transaction,
            request,
        }
    }

    fn request_of<C: Command>(&self, command: &C) -> Request<C::Reply> {
        self.request(C::NAME, self.envelope(command).map_err(Into::into))
    }

    fn request<R>(
        &self,
        name: &'static str,
        envelope: Result<Envelope, ExecuteError>,
    ) -> Request<R> {
        Request {
            name,
            envelope,
            wait: self.inner.execute_wait,
            reply: PhantomData,
        }
    }

    fn envelope_of_json<C: Command>(&self, json: &str) -> Result<Envelope, ExecuteError> {
        let fault = |source| DecodeError {
            message_type: C::NAME,
            source,
        };
        let payload = Payload::from_json(json).map_err(fault)?;
        let command: C = payload.decode()?;
        let mut envelope = Envelope::new(&command).map_err(fault)?;
        envelope.payload = payload;
        Ok(self.checked::<C>(envelope)?)
    }
}

/// The options, the same for both.
macro_rules! options {
    () => {
        /// Sets the correlation id of what the handler publishes.
        pub fn correlation(mut self, id: Uuid) -> Self {
            self.request
                .edit(|envelope| envelope.correlation_id = Some(id));
            self
        }

        /// Sets the W3C trace context of what the handler publishes.
        pub fn traceparent(mut self, value: impl Into<String>) -> Self {
            let value = value.into();
            self.request
                .edit(|envelope| envelope.headers.traceparent = Some(value));
            self
        }

        /// How long to wait for another execution of the same key; zero does not wait at all.
        pub fn wait(mut self, longest: Duration) -> Self {
            self.request.wait = longest;
            self
        }
    };
}

impl<'a, S: Store, R> Execute<'a, S, R> {
    options!();

    async fn run(self) -> Result<R, ExecuteError>
    where
        R: DeserializeOwned,
    {
        let envelope = self.request.envelope?;
        let handler = self.dispatcher.command_handler(self.request.name)?;
        let metadata = Metadata::of(&envelope, handler.spec.name);
        let call = CommandCall::new(self.dispatcher, &handler, &envelope.payload, &metadata)?;
        let answer = call.once_for_key(self.request.wait).await?;
        call.reply(answer)
    }
}

impl<'a, 't, S: Store, R> ExecuteIn<'a, 't, S, R> {
    options!();

    pub(crate) fn caused_by(mut self, metadata: &Metadata) -> Self {
        self.request.edit(|envelope| {
            envelope.correlation_id = metadata.correlation_id.or(Some(metadata.message_id));
            envelope.causation_id = Some(metadata.message_id);
            envelope
                .headers
                .traceparent
                .clone_from(&metadata.headers.traceparent);
        });
        self
    }

    async fn run(self) -> Result<R, ExecuteError>
    where
        R: DeserializeOwned,
    {
        let envelope = self.request.envelope?;
        let handler = self.dispatcher.command_handler(self.request.name)?;
        let metadata = Metadata::of(&envelope, handler.spec.name);
        let call = CommandCall::new(self.dispatcher, &handler, &envelope.payload, &metadata)?;
        let answer = call.within(self.transaction, self.request.wait).await?;
        call.reply(answer)
    }
}

impl<'a, S: Store, R: DeserializeOwned + Send + 'static> IntoFuture for Execute<'a, S, R> {
    type Output = Result<R, ExecuteError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl<'a, 't: 'a, S: Store, R: DeserializeOwned + Send + 'static> IntoFuture
    for ExecuteIn<'a, 't, S, R>
{
    type Output = Result<R, ExecuteError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}
