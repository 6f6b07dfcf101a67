//! A transport inside one process: for tests, examples and services that have no broker yet.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::future::BoxFuture;
use tokio::sync::Notify;

use super::{Acknowledge, Content, Delivery, Intake, RawMessage, Sent, Transport, TransportError};
use crate::Envelope;

/// A queue in memory that behaves like a broker: a delivery that is not acknowledged comes again.
///
/// Clones share the queue, so one clone goes to the builder and another one feeds it. What is in
/// the queue is lost with the process; only inbox and outbox are durable.
///
/// ```
/// use whizbang::transport::{InProcess, Transport};
/// let transport = InProcess::new("in-process");
/// assert_eq!(transport.name(), "in-process");
/// assert_eq!(transport.waiting(), 0);
/// ```
#[derive(Clone)]
pub struct InProcess {
    name: Arc<str>,
    queue: Arc<Queue>,
}

#[derive(Default)]
struct Queue {
    waiting: Mutex<VecDeque<Content>>,
    in_flight: std::sync::atomic::AtomicUsize,
    arrived: Notify,
}

impl InProcess {
    /// An empty queue.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self {
            name: name.into(),
            queue: Arc::default(),
        }
    }

    /// Puts a message into the queue, as a foreign sender would.
    pub fn deliver(&self, message: RawMessage) {
        self.queue.push(Content::Message(Box::new(message)));
    }

    /// Puts bytes into the queue that are no message.
    pub fn deliver_poison(&self, raw: impl Into<Vec<u8>>, error: impl Into<String>) {
        self.queue.push(Content::Poison {
            raw: raw.into(),
            error: error.into(),
        });
    }

    /// Deliveries that wait or are not acknowledged yet.
    pub fn waiting(&self) -> usize {
        self.queue.lock().len()
            + self
                .queue
                .in_flight
                .load(std::sync::atomic::Ordering::Acquire)
    }
}

impl Queue {
    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Content>> {
        // A panic while pushing leaves the queue as it was.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, content: Content) {
        self.lock().push_back(content);
        self.arrived.notify_one();
    }

    fn take(self: &Arc<Self>, max: usize) -> Vec<Delivery> {
        let mut waiting = self.lock();
        let count = max.min(waiting.len());
        self.in_flight
            .fetch_add(count, std::sync::atomic::Ordering::AcqRel);
        waiting
            .drain(..count)
            .map(|content| {
                let unsettled = Unsettled {
                    queue: Arc::clone(self),
                    content: Some(content.clone()),
                };
                Delivery::new(content, unsettled)
            })
            .collect()
    }
}

/// Goes back to the queue when it is dropped without an answer.
struct Unsettled {
    queue: Arc<Queue>,
    content: Option<Content>,
}

impl Acknowledge for Unsettled {
    fn ack(mut self: Box<Self>) -> BoxFuture<'static, Result<(), TransportError>> {
        self.content = None;
        Box::pin(std::future::ready(Ok(())))
    }

    fn nack(self: Box<Self>) -> BoxFuture<'static, Result<(), TransportError>> {
        drop(self);
        Box::pin(std::future::ready(Ok(())))
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        if let Some(content) = self.content.take() {
            self.queue.push(content);
        }
        self.queue
            .in_flight
            .fetch_sub(1, std::sync::atomic::Ordering::AcqRel);
    }
}

impl Transport for InProcess {
    fn name(&self) -> &str {
        &self.name
    }

    fn start<'a>(&'a self, _intake: &'a Intake) -> BoxFuture<'a, Result<(), TransportError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn send<'a>(
        &'a self,
        batch: &'a [Envelope],
    ) -> BoxFuture<'a, Result<Vec<Sent>, TransportError>> {
        for envelope in batch {
            self.deliver(RawMessage::from_envelope(envelope));
        }
        let answers = batch.iter().map(|_| Sent::Acknowledged).collect();
        Box::pin(std::future::ready(Ok(answers)))
    }

    fn receive(
        &self,
        max: usize,
        wait: Duration,
    ) -> BoxFuture<'_, Result<Vec<Delivery>, TransportError>> {
        Box::pin(async move {
            let arrived = self.queue.arrived.notified();
            let batch = self.queue.take(max);
            if !batch.is_empty() {
                return Ok(batch);
            }
            // Waiting is only a courtesy: the caller asks again.
            let _ = tokio::time::timeout(wait, arrived).await;
            Ok(self.queue.take(max))
        })
    }
}
