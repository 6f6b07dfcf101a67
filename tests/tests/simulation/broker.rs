//! A broker that delivers late, out of order and more than once, and loses acknowledgements.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use tokio::{sync::Notify, time::Instant};
use uuid::Uuid;
use whizbang::{
    Envelope, StreamKey,
    testing::MemoryStore,
    transport::{
        Acknowledge, Content, Delivery, Intake, RawMessage, Sent, Transport, TransportError,
    },
};

use super::{chance::Dice, world::lock};

/// Name of the transport.
pub(crate) const NAME: &str = "broker";

/// How long a delivery may stay without an answer before it comes again.
const PATIENCE: Duration = Duration::from_secs(4);

/// The broker itself.
#[derive(Clone)]
pub(crate) struct Broker(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    arrived: Notify,
    dice: Dice,
    calm: AtomicBool,
}

#[derive(Default)]
struct State {
    next: u64,
    waiting: BTreeMap<u64, (RawMessage, Instant)>,
    in_flight: BTreeMap<u64, (RawMessage, Instant)>,
    sent: Vec<Passed>,
}

/// A message that a service has sent.
#[derive(Debug, Clone)]
pub(crate) struct Passed {
    pub(crate) id: Uuid,
    pub(crate) message_type: String,
}

impl Broker {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Arc::new(Inner {
            state: Mutex::default(),
            arrived: Notify::new(),
            dice: Dice::new(seed, 3),
            calm: AtomicBool::new(false),
        }))
    }

    pub(crate) fn calm_down(&self) {
        self.0.calm.store(true, Ordering::Release);
        self.0.arrived.notify_waiters();
    }

    /// A foreign service sends a message.
    pub(crate) fn put(&self, message: RawMessage) {
        self.0.put(message, Duration::ZERO);
    }

    /// What waits or has no answer yet.
    pub(crate) fn load(&self) -> usize {
        let state = self.0.lock();
        state.waiting.len() + state.in_flight.len()
    }

    /// What services have sent, in order.
    pub(crate) fn sent(&self) -> Vec<Passed> {
        self.0.lock().sent.clone()
    }

    /// A process's way to the broker.
    pub(crate) fn port(&self, process: MemoryStore) -> Port {
        Port {
            broker: self.clone(),
            process,
        }
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Whether something goes wrong now.
    fn fails(&self, chance: f64) -> bool {
        !self.calm.load(Ordering::Acquire) && self.dice.happens(chance)
    }

    fn put(&self, message: RawMessage, delay: Duration) {
        let mut state = self.lock();
        state.next += 1;
        let number = state.next;
        state
            .waiting
            .insert(number, (message, Instant::now() + delay));
        drop(state);
        self.arrived.notify_waiters();
    }

    /// Takes a few messages in any order.
    fn take(self: &Arc<Self>, max: usize) -> Vec<Delivery> {
        let mut state = self.lock();
        let now = Instant::now();
        let late: Vec<_> = state
            .in_flight
            .iter()
            .filter(|(_, (_, until))| *until <= now)
            .map(|(number, _)| *number)
            .collect();
        for number in late {
            if let Some((message, _)) = state.in_flight.remove(&number) {
                state.waiting.insert(number, (message, now));
            }
        }
        let mut ready: Vec<_> = state
            .waiting
            .iter()
            .filter(|(_, (_, from))| *from <= now)
            .map(|(number, _)| *number)
            .collect();
        let mut taken = Vec::new();
        let count = max.min(1 + self.dice.below(8) as usize).min(ready.len());
        for _ in 0..count {
            let place = if self.fails(0.3) {
                self.dice.below(ready.len() as u64) as usize
            } else {
                0
            };
            let number = ready.remove(place);
            let Some((message, _)) = state.waiting.remove(&number) else {
                continue;
            };
            state
                .in_flight
                .insert(number, (message.clone(), now + PATIENCE));
            taken.push((number, message));
        }
        drop(state);
        taken
            .into_iter()
            .map(|(number, message)| self.deliver(number, message))
            .collect()
    }

    fn deliver(self: &Arc<Self>, number: u64, message: RawMessage) -> Delivery {
        if self.fails(0.15) {
            self.put(message.clone(), self.dice.millis(0, 3000));
        }
        let receipt = Receipt {
            broker: Arc::clone(self),
            number,
        };
        Delivery::new(Content::Message(Box::new(message)), receipt)
    }

    fn settle(&self, number: u64, done: bool) {
        let mut state = self.lock();
        let Some((message, _)) = state.in_flight.remove(&number) else {
            // It took too long: the message waits again, or another process has it.
            return;
        };
        if !done {
            state.waiting.insert(number, (message, Instant::now()));
        }
        drop(state);
        self.arrived.notify_waiters();
    }
}

struct Receipt {
    broker: Arc<Inner>,
    number: u64,
}

impl Acknowledge for Receipt {
    fn ack(self: Box<Self>) -> BoxFuture<'static, Result<(), TransportError>> {
        Box::pin(async move {
            // A lost acknowledgement: the delivery comes again when the broker's patience ends.
            if self.broker.fails(0.05) {
                return Err(error("the acknowledgement was lost"));
            }
            self.broker.settle(self.number, true);
            if self.broker.fails(0.05) {
                return Err(error("the answer to the acknowledgement was lost"));
            }
            Ok(())
        })
    }

    fn nack(self: Box<Self>) -> BoxFuture<'static, Result<(), TransportError>> {
        Box::pin(async move {
            self.broker.settle(self.number, false);
            Ok(())
        })
    }
}

/// One process's connection to the broker.
pub(crate) struct Port {
    broker: Broker,
    process: MemoryStore,
}

impl Port {
    /// Dies now and then; waits while the process stands still.
    async fn step(&self) {
        if self.broker.0.fails(0.0005) {
            self.process.crash();
        }
        self.process.running().await;
    }

    fn record(&self, envelope: &Envelope) {
        self.broker.0.lock().sent.push(Passed {
            id: envelope.id,
            message_type: envelope.message_type.clone(),
        });
    }

    async fn pass_on(&self, batch: &[Envelope]) -> Result<Vec<Sent>, TransportError> {
        let inner = &self.broker.0;
        self.step().await;
        if inner.fails(0.05) {
            return Err(error("the broker is away"));
        }
        let mut answers = Vec::new();
        let mut refused = Vec::new();
        for envelope in batch {
            let stream = envelope.stream.as_ref().map(StreamKey::id);
            if stream.is_some() && refused.contains(&stream) {
                answers.push(Sent::Skipped);
            } else if inner.fails(0.03) {
                refused.push(stream);
                answers.push(Sent::Refused("not today".to_owned()));
            } else {
                self.record(envelope);
                answers.push(Sent::Acknowledged);
            }
            if inner.fails(0.01) {
                return Err(error("the connection broke in the middle of a batch"));
            }
        }
        self.step().await;
        if inner.fails(0.03) {
            return Err(error("the broker's answer was lost"));
        }
        Ok(answers)
    }
}

impl Transport for Port {
    fn name(&self) -> &str {
        NAME
    }

    fn start<'a>(&'a self, _intake: &'a Intake) -> BoxFuture<'a, Result<(), TransportError>> {
        Box::pin(async move {
            self.step().await;
            if self.broker.0.fails(0.1) {
                return Err(error("the broker is away"));
            }
            Ok(())
        })
    }

    fn send<'a>(
        &'a self,
        batch: &'a [Envelope],
    ) -> BoxFuture<'a, Result<Vec<Sent>, TransportError>> {
        Box::pin(self.pass_on(batch))
    }

    fn receive(
        &self,
        max: usize,
        wait: Duration,
    ) -> BoxFuture<'_, Result<Vec<Delivery>, TransportError>> {
        Box::pin(async move {
            let until = Instant::now() + wait;
            loop {
                self.step().await;
                if self.broker.0.fails(0.02) {
                    return Err(error("the broker is away"));
                }
                let arrived = self.broker.0.arrived.notified();
                let taken = self.broker.0.take(max);
                if !taken.is_empty() || Instant::now() >= until {
                    return Ok(taken);
                }
                // Late deliveries fall due without a sign.
                let pause = Duration::from_millis(250).min(until - Instant::now());
                let _ = tokio::time::timeout(pause, arrived).await;
            }
        })
    }
}

fn error(what: &str) -> TransportError {
    TransportError {
        transport: NAME.to_owned(),
        what: what.to_owned(),
        source: None,
    }
}
