//! Takes deliveries from a transport into the inbox, and acknowledges them once they are safe.

use std::{collections::HashSet, sync::Arc, time::Duration};

use super::{
    counters::add,
    run,
    shared::{Patience, Shared},
    stop::Phase,
};
use crate::{
    Envelope, MessageKind, Payload, StoreErrorKind, StreamKey,
    message::name_fault,
    store::{Poison, Store, StoreReport, StoreResult},
    transport::{Acknowledge, Content, Delivery, RawMessage, Transport},
};

/// How long one call waits for deliveries.
const WAIT: Duration = Duration::from_secs(5);

/// Deepest nesting of a payload; decoders and PostgreSQL both give up on much deeper ones.
const MAX_DEPTH: usize = 100;

type Ack = Option<Box<dyn Acknowledge>>;

pub(crate) async fn consume<S: Store>(shared: Arc<Shared<S>>, transport: Arc<dyn Transport>) {
    let mut patience = Patience::default();
    loop {
        let batch = shared.config.intake_batch;
        let received = transport.receive(batch, WAIT);
        let Some(received) = shared.stop.unless(Phase::Draining, received).await else {
            return;
        };
        match received {
            Ok(deliveries) if deliveries.is_empty() => patience.reset(),
            Ok(deliveries) => {
                if store_all(&shared, deliveries).await {
                    patience.reset();
                } else {
                    patience.pause(&shared.stop).await;
                }
            }
            Err(error) => {
                tracing::warn!(
                    error = crate::error_chain(&error),
                    "the transport delivers nothing"
                );
                patience.pause(&shared.stop).await;
            }
        }
    }
}

/// Deliveries, sorted by what must be done with them.
#[derive(Default)]
struct Sorted {
    good: Vec<(Envelope, Ack)>,
    bad: Vec<(Poison, Ack)>,
    /// This service's own events, come back from the broker.
    own: Vec<Ack>,
}

/// Stores a batch and settles every delivery of it; `false` if the store was away.
async fn store_all<S: Store>(shared: &Arc<Shared<S>>, deliveries: Vec<Delivery>) -> bool {
    let sorted = sort(shared, deliveries);
    settle(sorted.own, true).await;
    let good = store_good(shared, sorted.good).await;
    let bad = store_bad(shared, sorted.bad).await;
    good && bad
}

fn sort<S: Store>(shared: &Shared<S>, deliveries: Vec<Delivery>) -> Sorted {
    let mut sorted = Sorted::default();
    for delivery in deliveries {
        let (content, ack) = delivery.into_parts();
        match content {
            Content::Poison { raw, error } => {
                let poison = Poison {
                    message_id: None,
                    message_type: None,
                    raw,
                    headers: crate::Headers::default(),
                    reason: "undecodable",
                    error: crate::storable_text(error),
                };
                sorted.bad.push((poison, ack));
            }
            Content::Message(message) => {
                // An own event was delivered here without the broker. A command goes to one
                // destination only: if that was the broker, this is the only copy.
                let own = message.headers.source.as_deref() == Some(&shared.instance.service);
                if own && !message.is_command {
                    sorted.own.push(ack);
                    continue;
                }
                match read(*message, shared.config.message_limit) {
                    Ok(envelope) => sorted.good.push((envelope, ack)),
                    Err(poison) => sorted.bad.push((*poison, ack)),
                }
            }
        }
    }
    sorted
}

/// Checks what the database would choke on; what cannot be stored as a message is kept as bytes.
fn read(message: RawMessage, limit: usize) -> Result<Envelope, Box<Poison>> {
    match check(&message, limit) {
        Ok(payload) => Ok(Envelope {
            id: message.id,
            message_type: message.message_type,
            kind: if message.is_command {
                MessageKind::Command
            } else {
                MessageKind::Event
            },
            payload,
            stream: message.stream,
            correlation_id: message.correlation_id,
            causation_id: message.causation_id,
            headers: message.headers,
        }),
        Err(error) => Err(Box::new(Poison {
            message_id: Some(message.id).filter(|id| !id.is_nil()),
            message_type: Some(crate::storable_text(message.message_type)),
            raw: message.payload,
            headers: clean(message.headers),
            reason: "undecodable",
            error: crate::storable_text(error),
        })),
    }
}

fn check(message: &RawMessage, limit: usize) -> Result<Payload, String> {
    if message.id.is_nil() {
        return Err("the message id is the nil UUID".to_owned());
    }
    if let Some(fault) = name_fault(&message.message_type) {
        return Err(format!("the message type {fault}"));
    }
    if message.payload.len() > limit {
        return Err(format!(
            "the payload has {} bytes, the limit is {limit}",
            message.payload.len()
        ));
    }
    if has_nul(&message.headers) {
        return Err("a header contains a NUL character".to_owned());
    }
    let text = std::str::from_utf8(&message.payload)
        .map_err(|error| format!("the payload is not UTF-8: {error}"))?;
    let depth = depth(text);
    if depth > MAX_DEPTH {
        return Err(format!(
            "the payload is nested {depth} levels deep, the limit is {MAX_DEPTH}"
        ));
    }
    Payload::from_json(text).map_err(|error| format!("the payload is not JSON: {error}"))
}

fn has_nul(headers: &crate::Headers) -> bool {
    let named = [&headers.source, &headers.traceparent, &headers.stream];
    named.into_iter().flatten().any(|text| text.contains('\0'))
        || headers
            .headers
            .iter()
            .any(|(name, value)| name.contains('\0') || value.contains('\0'))
}

fn clean(mut headers: crate::Headers) -> crate::Headers {
    if has_nul(&headers) {
        let text = headers.to_json().replace("\\u0000", "\\ufffd");
        headers = crate::Headers::from_json(&text);
    }
    headers
}

/// How deeply brackets nest, strings left out.
fn depth(text: &str) -> usize {
    let (mut depth, mut deepest) = (0usize, 0usize);
    let (mut in_string, mut escaped) = (false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

async fn store_good<S: Store>(shared: &Arc<Shared<S>>, good: Vec<(Envelope, Ack)>) -> bool {
    if good.is_empty() {
        return true;
    }
    let (envelopes, acks): (Vec<_>, Vec<_>) = good.into_iter().unzip();
    match store_batch(shared, &envelopes).await {
        Ok(()) => {
            settle(acks, true).await;
            true
        }
        Err(error) if error.kind == StoreErrorKind::Unavailable => {
            settle(acks, false).await;
            false
        }
        // One of the batch is refused: find out which, so that the others are not held up.
        Err(_) => store_each(shared, envelopes, acks).await,
    }
}

async fn store_batch<S: Store>(shared: &Arc<Shared<S>>, envelopes: &[Envelope]) -> StoreResult<()> {
    let hand_over = shared.hand_over();
    let stored = shared
        .store
        .store_inbox(envelopes, hand_over.as_ref())
        .await;
    shared.note(&stored);
    shared.note_unanswered(&stored, hand_over.as_ref().map(|offer| offer.token));
    let report = stored?;
    count_report(shared, &report);
    run::start(shared, report.leased);
    Ok(())
}

async fn store_each<S: Store>(
    shared: &Arc<Shared<S>>,
    envelopes: Vec<Envelope>,
    acks: Vec<Ack>,
) -> bool {
    let mut held_up = HashSet::new();
    let mut there = true;
    for (envelope, ack) in envelopes.into_iter().zip(acks) {
        // What comes again must not find a later message of its stream stored before it.
        let stream = envelope.stream.as_ref().map(StreamKey::id);
        let waits = stream.is_some_and(|stream| held_up.contains(&stream));
        let safe = !waits && store_one(shared, envelope).await;
        if !safe {
            there = false;
            held_up.extend(stream);
        }
        settle(vec![ack], safe).await;
    }
    there
}

/// Stores one message, or keeps it as a dead letter if the store will not have it.
async fn store_one<S: Store>(shared: &Arc<Shared<S>>, envelope: Envelope) -> bool {
    match store_batch(shared, std::slice::from_ref(&envelope)).await {
        Ok(()) => true,
        Err(error) if error.kind == StoreErrorKind::Data => {
            store_bad(shared, vec![(refused(envelope, &error), None)]).await
        }
        // Whatever else is wrong is not the message's fault: it comes again.
        Err(error) => {
            let error = crate::error_chain(&error);
            tracing::warn!(message = %envelope.id, error, "a delivery could not be stored; it is given back");
            false
        }
    }
}

fn refused(envelope: Envelope, error: &crate::StoreError) -> Poison {
    Poison {
        message_id: Some(envelope.id),
        message_type: Some(envelope.message_type),
        raw: envelope.payload.as_str().as_bytes().to_vec(),
        headers: envelope.headers,
        reason: "refused",
        error: crate::error_chain(error),
    }
}

async fn store_bad<S: Store>(shared: &Arc<Shared<S>>, bad: Vec<(Poison, Ack)>) -> bool {
    if bad.is_empty() {
        return true;
    }
    let (poison, acks): (Vec<_>, Vec<_>) = bad.into_iter().unzip();
    let stored = shared.store.store_poison(&poison).await;
    shared.note(&stored);
    let safe = match stored {
        Ok(()) => {
            add(&shared.counters.poison, poison.len() as u64);
            for poison in &poison {
                tracing::warn!(message = ?poison.message_id, error = poison.error, "a delivery was no message; it is in the dead letters");
            }
            true
        }
        Err(error) => {
            tracing::warn!(
                error = crate::error_chain(&error),
                "dead letters could not be stored"
            );
            false
        }
    };
    settle(acks, safe).await;
    safe
}

async fn settle(acks: Vec<Ack>, safe: bool) {
    for ack in acks.into_iter().flatten() {
        let settled = if safe {
            ack.ack().await
        } else {
            ack.nack().await
        };
        if let Err(error) = settled {
            // The broker delivers it again and the inbox recognises it.
            tracing::debug!(
                error = crate::error_chain(&error),
                "a delivery could not be settled"
            );
        }
    }
}

/// Adds what a store call did to the counters, and wakes the worker for what it left.
pub(crate) fn count_report<S: Store>(shared: &Shared<S>, report: &StoreReport) {
    let counters = &shared.counters;
    add(&counters.stored, report.stored);
    add(&counters.duplicates, report.duplicates);
    add(&counters.conflicts, report.conflicts.len() as u64);
    add(&counters.too_old, report.too_old);
    add(&counters.unhandled, report.unhandled);
    add(&counters.dropped, report.dropped);
    add(&counters.handed_over, report.leased.len() as u64);
    add(&counters.dead, report.too_old + report.unhandled);
    for message in &report.conflicts {
        tracing::warn!(%message, "a known message id came with another payload; the first one counts");
    }
    if report.too_old > 0 {
        tracing::warn!(
            count = report.too_old,
            "messages older than the deduplication window; they are in the dead letters"
        );
    }
    if report.unhandled > 0 {
        tracing::warn!(
            count = report.unhandled,
            "commands that nobody handles; they are in the dead letters"
        );
    }
    if report.waiting > 0 {
        shared.work.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::depth;

    #[test]
    fn brackets_inside_strings_do_not_nest() {
        assert_eq!(depth(r#"{"a":"[[[","b":[{"c":"\"]"}]}"#), 3);
        assert_eq!(depth("1"), 0);
    }
}
