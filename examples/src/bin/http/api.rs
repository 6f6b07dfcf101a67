//! From HTTP to the command and back.

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::{HeaderMap, HeaderValue, StatusCode, header::LOCATION},
    routing::{get, post},
};
use serde::Serialize;
use uuid::Uuid;
use whizbang::{
    ExecuteError,
    http::{CommandRequest, Problem},
};
use whizbang_postgres::App;

use crate::orders::{OrderError, OrderReceipt, PlaceOrder};

/// What the routes work with.
#[derive(Clone)]
pub(crate) struct Shop {
    pub(crate) app: Arc<App>,
    pub(crate) pool: sqlx::PgPool,
    pub(crate) refuse_in_progress: bool,
}

pub(crate) fn routes(shop: Shop) -> Router {
    Router::new()
        .route("/orders", post(place_order))
        .route("/orders/{id}", get(show_order))
        .route("/health/live", get(live))
        .route("/health/ready", get(ready))
        .with_state(shop)
}

/// Safe to repeat: the same key gets the same answer.
async fn place_order(
    State(shop): State<Shop>,
    request: CommandRequest<PlaceOrder>,
) -> Result<(StatusCode, HeaderMap, Json<OrderReceipt>), Problem> {
    let mut request = request.key_from_header_or_body("request_id")?;
    if shop.refuse_in_progress {
        request = request.wait(Duration::ZERO);
    }
    let receipt = request
        .execute(&shop.app.dispatcher())
        .await
        .map_err(problem)?;
    let mut headers = HeaderMap::new();
    let place = HeaderValue::from_str(&format!("/orders/{}", receipt.order_id));
    headers.extend(place.ok().map(|place| (LOCATION, place)));
    Ok((StatusCode::CREATED, headers, Json(receipt)))
}

/// The shop's own errors have answers of their own; the rest is answered as usual.
fn problem(error: ExecuteError) -> Problem {
    if let ExecuteError::Handler(cause) = &error
        && let Some(sold_out @ OrderError::SoldOut { .. }) = cause.downcast_ref()
    {
        return Problem::new(409, "sold_out", sold_out.to_string());
    }
    error.into()
}

#[derive(Serialize)]
struct Order {
    order_id: Uuid,
    sku: String,
    quantity: i64,
    note: Option<String>,
    packed: i64,
}

async fn show_order(
    State(shop): State<Shop>,
    Path(id): Path<Uuid>,
) -> Result<Json<Order>, Problem> {
    let row: Option<(String, i64, Option<String>, i64)> =
        sqlx::query_as("SELECT sku, quantity, note, packed FROM orders WHERE order_id = $1")
            .bind(id)
            .fetch_optional(&shop.pool)
            .await
            .map_err(|error| {
                tracing::error!(%error, "an order could not be read");
                Problem::new(503, "unavailable", "the service cannot answer now").retry_after(SOON)
            })?;
    let missing = || Problem::new(404, "no_such_order", "there is no order of this id");
    let (sku, quantity, note, packed) = row.ok_or_else(missing)?;
    Ok(Json(Order {
        order_id: id,
        sku,
        quantity,
        note,
        packed,
    }))
}

const SOON: Duration = Duration::from_secs(1);

/// The process answers.
async fn live() -> StatusCode {
    StatusCode::OK
}

#[derive(Serialize)]
struct Ready {
    accepting: bool,
    database: bool,
    messages_held: usize,
}

/// The process does its work: send it requests.
async fn ready(State(shop): State<Shop>) -> (StatusCode, Json<Ready>) {
    let health = shop.app.health();
    let status = match health.accepting && health.database {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    let ready = Ready {
        accepting: health.accepting,
        database: health.database,
        messages_held: health.held,
    };
    (status, Json(ready))
}
