//! A request whose body is a command.

use std::{collections::BTreeMap, marker::PhantomData, time::Duration};

use axum_core::{
    extract::{FromRequest, Request},
    response::IntoResponse,
};
use http::{HeaderMap, StatusCode, header};
use serde::Serialize;
use serde_json::value::RawValue;

use tracing::Instrument;

use super::{IdempotencyKey, Problem};
use crate::{Command, Dispatcher, ExecuteError, Payload, StoreError, StoreErrorKind, store::Store};

/// A request whose JSON body is the idempotent command `C`, as an extractor.
///
/// The body is kept as it was sent, so that a retry is recognised by what the client said and not
/// by what newer versions of the type add to it. Its key is a member of the body, unless
/// [`key_from_header`](Self::key_from_header) or
/// [`key_from_header_or_body`](Self::key_from_header_or_body) puts the header `Idempotency-Key`
/// there: the command has one key, whichever way it comes. The field is then a string, a `Uuid`, or
/// anything else that reads from a JSON string.
///
/// ```ignore
/// async fn post_order(
///     State(dispatcher): State<Dispatcher>,
///     request: CommandRequest<PlaceOrder>,
/// ) -> Result<Json<OrderReceipt>, Problem> {
///     let receipt = request
///         .key_from_header("order_id")?
///         .execute(&dispatcher)
///         .await?;
///     Ok(Json(receipt))
/// }
/// ```
///
/// A repeat that meets the running execution waits for it, up to the service's `execute_wait`;
/// [`wait`](Self::wait) with zero answers 409 at once instead. The header `traceparent` is handed
/// on to what the handler publishes.
#[derive(Debug)]
pub struct CommandRequest<C> {
    members: BTreeMap<String, Box<RawValue>>,
    key: Option<IdempotencyKey>,
    traceparent: Option<String>,
    wait: Option<Duration>,
    command: PhantomData<fn() -> C>,
}

impl<C: Command> CommandRequest<C> {
    /// Makes the header `Idempotency-Key` this member of the command, whatever the body has there.
    ///
    /// # Errors
    /// 400 without the header, and if the body has another key in this place.
    pub fn key_from_header(self, member: &str) -> Result<Self, Problem> {
        match self.key {
            Some(_) => self.key_from_header_or_body(member),
            None => Err(Problem::missing_key()),
        }
    }

    /// Makes the header `Idempotency-Key` this member of the command, or takes what the body has
    /// there.
    ///
    /// # Errors
    /// 400 if there is neither, and if both are there and differ.
    pub fn key_from_header_or_body(mut self, member: &str) -> Result<Self, Problem> {
        let in_body = self.members.get(member).map(|raw| raw.get());
        match (&self.key, in_body) {
            (None, None | Some("null")) => Err(Problem::missing_key()),
            (None, Some(_)) => Ok(self),
            (Some(key), None | Some("null")) => {
                let key = key.as_str().to_owned();
                self.insert(member, &key)?;
                Ok(self)
            }
            (Some(key), Some(raw)) => match is_the_same(raw, key.as_str()) {
                true => Ok(self),
                false => Err(Problem::malformed(format!(
                    "the header Idempotency-Key and the body's `{member}` are different keys; send one of them"
                ))),
            },
        }
    }

    /// Sets a member of the command from what the service knows, such as the authenticated client
    /// or a part of the path, whatever the body has there.
    ///
    /// It is part of what a retry must repeat: do not set what changes with every request, such as
    /// the time.
    ///
    /// # Errors
    /// 500 if the value's `Serialize` fails.
    pub fn set(mut self, member: &str, value: &impl Serialize) -> Result<Self, Problem> {
        self.insert(member, value)?;
        Ok(self)
    }

    /// How long to wait for another execution of the same key; zero answers 409 at once.
    pub fn wait(mut self, longest: Duration) -> Self {
        self.wait = Some(longest);
        self
    }

    /// The command, to look at before it is executed.
    ///
    /// # Errors
    /// 422 if the body does not fit the type.
    pub fn command(&self) -> Result<C, Problem> {
        let payload = Payload::from_stored(self.json());
        payload.decode().map_err(|error| Problem::invalid(&error))
    }

    /// Executes the command, or finds what it came to before.
    ///
    /// The execution goes on when the client hangs up, in a task of its own, so that a client whose
    /// patience is shorter than the work finds it done when it tries again.
    ///
    /// # Errors
    /// As [`Dispatcher::execute_json`]; any [`ExecuteError`] becomes a [`Problem`] by `?`.
    pub async fn execute<S: Store>(
        self,
        dispatcher: &Dispatcher<S>,
    ) -> Result<C::Reply, ExecuteError> {
        let dispatcher = dispatcher.clone();
        let execution = async move { self.execute_here(&dispatcher).await };
        let ended = tokio::spawn(execution.in_current_span()).await;
        ended.unwrap_or_else(|cut_off| {
            let kind = StoreErrorKind::Unavailable;
            let what = "the program is being stopped";
            Err(ExecuteError::Store(StoreError::new(kind, what, cut_off)))
        })
    }

    async fn execute_here<S: Store>(
        self,
        dispatcher: &Dispatcher<S>,
    ) -> Result<C::Reply, ExecuteError> {
        let json = self.json();
        let mut execution = dispatcher.execute_json::<C>(&json);
        if let Some(wait) = self.wait {
            execution = execution.wait(wait);
        }
        if let Some(traceparent) = self.traceparent {
            execution = execution.traceparent(traceparent);
        }
        execution.await
    }

    fn json(&self) -> String {
        // What was read as JSON can be written.
        serde_json::to_string(&self.members).unwrap_or_default()
    }

    fn insert(&mut self, member: &str, value: &impl Serialize) -> Result<(), Problem> {
        let raw = serde_json::value::to_raw_value(value).map_err(|error| {
            tracing::error!(%error, member, "a member of a command could not be encoded");
            Problem::new(500, "failed", "the request failed and nothing was changed")
        })?;
        self.members.insert(member.to_owned(), raw);
        Ok(())
    }
}

/// Whether a member of the body says the same as the header.
fn is_the_same(raw: &str, key: &str) -> bool {
    match serde_json::from_str::<String>(raw) {
        Ok(text) => text == key,
        Err(_) => raw == key,
    }
}

impl<State, C> FromRequest<State> for CommandRequest<C>
where
    State: Send + Sync,
    C: Command,
{
    type Rejection = Problem;

    async fn from_request(request: Request, state: &State) -> Result<Self, Problem> {
        let headers = request.headers();
        let key = IdempotencyKey::of(headers)?;
        let traceparent = text(headers, "traceparent").map(str::to_owned);
        if !text(headers, header::CONTENT_TYPE.as_str()).is_some_and(is_json) {
            return Err(Problem::of(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "not_json",
                "send the body as JSON, with `Content-Type: application/json`",
            ));
        }
        let body = String::from_request(request, state)
            .await
            .map_err(|fault| {
                let status = fault.into_response().status();
                match status {
                    StatusCode::PAYLOAD_TOO_LARGE => {
                        Problem::of(status, "too_large", "the body is too large")
                    }
                    _ => Problem::malformed("the body could not be read as UTF-8 text"),
                }
            })?;
        let members = serde_json::from_str(&body)
            .map_err(|fault| Problem::malformed(format!("the body is no JSON object: {fault}")))?;
        Ok(Self {
            members,
            key,
            traceparent,
            wait: None,
            command: PhantomData,
        })
    }
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// `application/json`, or a type that says it is written in JSON.
fn is_json(content_type: &str) -> bool {
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    let media_type = media_type.to_ascii_lowercase();
    media_type == "application/json"
        || (media_type.starts_with("application/") && media_type.ends_with("+json"))
}
