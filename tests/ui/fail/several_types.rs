//! Types that do not fit are all reported at once, each at its place.
#![allow(unused)]
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use whizbang::{Command, Event, Metadata, State, handler, idempotent_command};
use whizbang_postgres::{Dispatcher, HandlerContext, LazyContext};

#[derive(Serialize, Deserialize, Event)]
#[message(name = "orders.order_placed")]
struct OrderPlaced {
    order_id: Uuid,
}

struct Mailer;

#[handler]
async fn mail(event: String, mailer: Mailer, conn: &mut sqlx::PgConnection) -> u8 {
    0
}

fn main() {}
