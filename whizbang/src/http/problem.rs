//! What is answered when a request cannot be done.

use std::{fmt, time::Duration};

use axum_core::{
    body::Body,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;

use super::InvalidKey;
use crate::{DecodeError, ExecuteError, PublishError, StoreErrorKind, error_chain};

/// When a client should try again after the service was busy or away.
const SOON: Duration = Duration::from_secs(1);

/// An answer as in RFC 9457, "Problem Details for HTTP APIs": a JSON object with `status`, `title`,
/// `detail` and a `code` that programs can tell cases apart by.
///
/// Every [`ExecuteError`] becomes one; match the error first where your interface answers
/// otherwise.
///
/// ```
/// use whizbang::{ExecuteError, http::Problem};
/// let error = ExecuteError::InProgress { waited: std::time::Duration::ZERO };
/// let problem = Problem::from(error);
/// assert_eq!((problem.status(), problem.code()), (409, "in_progress"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
    retry_after: Option<Duration>,
}

#[derive(Serialize)]
struct Members<'p> {
    title: &'p str,
    status: u16,
    code: &'p str,
    detail: &'p str,
}

impl Problem {
    /// A problem of your own. A `status` that is none becomes 500.
    pub fn new(status: u16, code: &'static str, detail: impl Into<String>) -> Self {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self::of(status, code, detail)
    }

    /// The status code.
    pub fn status(&self) -> u16 {
        self.status.as_u16()
    }

    /// The code that programs can tell cases apart by.
    pub fn code(&self) -> &'static str {
        self.code
    }

    /// What people can read about it.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// When to try the same request again, in whole seconds; less than one counts as one.
    pub fn retry_after(mut self, time: Duration) -> Self {
        self.retry_after = Some(time);
        self
    }

    pub(super) fn of(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            status,
            code,
            detail: detail.into(),
            retry_after: None,
        }
    }

    pub(super) fn missing_key() -> Self {
        Self::of(
            StatusCode::BAD_REQUEST,
            "idempotency_key_missing",
            "this operation needs a key that a retry repeats: send the header Idempotency-Key",
        )
    }

    pub(super) fn invalid_key(fault: &InvalidKey) -> Self {
        Self::of(
            StatusCode::BAD_REQUEST,
            "idempotency_key_invalid",
            format!("header Idempotency-Key: {fault}"),
        )
    }

    pub(super) fn malformed(detail: impl Into<String>) -> Self {
        Self::of(StatusCode::BAD_REQUEST, "malformed", detail)
    }

    pub(super) fn invalid(error: &DecodeError) -> Self {
        let detail = format!("the body does not fit: {}", error.source);
        Self::of(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail)
    }

    /// The cause is the service's own matter and goes to its log.
    fn failed(error: &ExecuteError) -> Self {
        tracing::error!(error = %error_chain(error), "a command could not be executed");
        let detail = "the request failed and nothing was changed; if it fails again, the service needs attention";
        Self::of(StatusCode::INTERNAL_SERVER_ERROR, "failed", detail)
    }

    fn unfinished(error: &ExecuteError) -> Self {
        tracing::error!(error = %error_chain(error), "a command ended its own transaction");
        let detail = "the request did not end in good order; the service needs attention";
        Self::of(StatusCode::INTERNAL_SERVER_ERROR, "failed", detail)
    }

    fn unavailable(error: &ExecuteError) -> Self {
        tracing::warn!(error = %error_chain(error), "a command could not be executed now");
        let detail = "the service cannot answer now; it is safe to send the same request again";
        Self::of(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail).retry_after(SOON)
    }
}

impl From<ExecuteError> for Problem {
    fn from(error: ExecuteError) -> Self {
        match &error {
            ExecuteError::KeyReused { .. } => Self::of(
                StatusCode::UNPROCESSABLE_ENTITY,
                "idempotency_key_reused",
                "this key was used for another request before; a retry must repeat the request exactly, a new request needs a new key",
            ),
            ExecuteError::InProgress { .. } => Self::of(
                StatusCode::CONFLICT,
                "in_progress",
                "the same request is being executed; it is safe to send it again",
            )
            .retry_after(SOON),
            ExecuteError::AlreadyDone { .. } => Self::of(
                StatusCode::CONFLICT,
                "already_done",
                "this was done before by another request",
            ),
            ExecuteError::Refused(refusal) => {
                let status = StatusCode::UNPROCESSABLE_ENTITY;
                Self::of(status, "refused", refusal.to_string())
            }
            ExecuteError::Decode(error) => Self::invalid(error),
            ExecuteError::Key(fault) => {
                let status = StatusCode::BAD_REQUEST;
                Self::of(status, "idempotency_key_invalid", fault.to_string())
            }
            ExecuteError::Payload(PublishError::TooLarge { limit, .. }) => Self::of(
                StatusCode::PAYLOAD_TOO_LARGE,
                "too_large",
                format!("the body is larger than {limit} bytes"),
            ),
            ExecuteError::Unfenced | ExecuteError::Unfinished { .. } => Self::unfinished(&error),
            ExecuteError::Timeout(_)
            | ExecuteError::Unknown(_)
            | ExecuteError::RetryTransaction(_) => Self::unavailable(&error),
            ExecuteError::Store(fault)
                if matches!(
                    fault.kind,
                    StoreErrorKind::Unavailable
                        | StoreErrorKind::Conflict
                        | StoreErrorKind::CommitUnknown
                ) =>
            {
                Self::unavailable(&error)
            }
            _ => Self::failed(&error),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.status.as_u16(), self.code, self.detail)
    }
}

impl std::error::Error for Problem {}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let members = Members {
            title: self.status.canonical_reason().unwrap_or("Problem"),
            status: self.status.as_u16(),
            code: self.code,
            detail: &self.detail,
        };
        // Strings and a number always encode.
        let body = serde_json::to_string(&members).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        let json = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, json);
        if let Some(time) = self.retry_after {
            headers.insert(
                header::RETRY_AFTER,
                HeaderValue::from(time.as_secs().max(1)),
            );
        }
        response
    }
}
