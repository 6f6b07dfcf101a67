//! A broker that outlives processes: a table.

use std::time::Duration;

use futures::future::BoxFuture;
use sqlx::PgPool;
use whizbang::{
    Envelope,
    transport::{Delivery, Intake, Sent, Transport, TransportError},
};

/// What the broker keeps.
pub(crate) const TABLE: &str = "CREATE TABLE broker (id bigserial PRIMARY KEY, message_id uuid, message_type text, payload text)";

/// Sends into the table and delivers nothing.
pub(crate) struct TableTransport(pub(crate) PgPool);

impl Transport for TableTransport {
    fn name(&self) -> &str {
        "broker"
    }

    fn start<'a>(&'a self, _intake: &'a Intake) -> BoxFuture<'a, Result<(), TransportError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn send<'a>(
        &'a self,
        batch: &'a [Envelope],
    ) -> BoxFuture<'a, Result<Vec<Sent>, TransportError>> {
        Box::pin(async move {
            let mut answers = Vec::with_capacity(batch.len());
            // One statement for each, so that a killed process leaves a batch half sent.
            for envelope in batch {
                let sent = sqlx::query(
                    "INSERT INTO broker (message_id, message_type, payload) VALUES ($1, $2, $3)",
                )
                .bind(envelope.id)
                .bind(&envelope.message_type)
                .bind(envelope.payload.as_str())
                .execute(&self.0);
                sent.await.map_err(|error| TransportError {
                    transport: "broker".to_owned(),
                    what: "the table cannot be written".to_owned(),
                    source: Some(error.into()),
                })?;
                answers.push(Sent::Acknowledged);
            }
            Ok(answers)
        })
    }

    fn receive(
        &self,
        _max: usize,
        wait: Duration,
    ) -> BoxFuture<'_, Result<Vec<Delivery>, TransportError>> {
        Box::pin(async move {
            tokio::time::sleep(wait).await;
            Ok(Vec::new())
        })
    }
}
