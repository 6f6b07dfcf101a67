//! A broker in memory that misbehaves on request, and remembers everything it was given.

use std::{
    collections::{HashSet, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::sync::{Notify, watch};
use uuid::Uuid;
use whizbang::{
    Envelope,
    transport::{
        Acknowledge, Content, Delivery, Intake, RawMessage, Sent, Transport, TransportError,
    },
};

/// Shares of calls or messages that go wrong.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// Messages that are refused.
    pub refuse: f64,
    /// Batches that arrive, but whose answer is lost.
    pub lose_answer: f64,
    /// Batches of which only the beginning is answered for.
    pub answer_short: f64,
    /// Longest pause before each message; the actual one is random.
    pub pause: Duration,
}

/// Says which messages a broker refuses.
type Refusal = Box<dyn Fn(&Envelope) -> bool + Send>;

/// A broker in memory. Clones share it.
#[derive(Clone)]
pub struct FlakyTransport {
    name: Arc<str>,
    broker: Arc<Broker>,
}

struct Broker {
    state: Mutex<State>,
    arrived: Notify,
    open: watch::Sender<bool>,
    sending: AtomicUsize,
    crowd: AtomicUsize,
}

struct State {
    faults: Faults,
    random: StdRng,
    away: bool,
    loops_back: bool,
    refusal: Option<Refusal>,
    accepted: Vec<Envelope>,
    queue: VecDeque<Content>,
    offered: usize,
    settled: (usize, usize),
}

impl FlakyTransport {
    /// A broker that works, until it is told otherwise.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            broker: Arc::new(Broker {
                state: Mutex::new(State {
                    faults: Faults::default(),
                    random: StdRng::seed_from_u64(1),
                    away: false,
                    loops_back: false,
                    refusal: None,
                    accepted: Vec::new(),
                    queue: VecDeque::new(),
                    offered: 0,
                    settled: (0, 0),
                }),
                arrived: Notify::new(),
                open: watch::Sender::new(true),
                sending: AtomicUsize::new(0),
                crowd: AtomicUsize::new(0),
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.broker
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets things go wrong from now on.
    pub fn faults(&self, faults: Faults, seed: u64) {
        let mut state = self.state();
        state.faults = faults;
        state.random = StdRng::seed_from_u64(seed);
    }

    /// The broker cannot be reached, or can again.
    pub fn away(&self, away: bool) {
        self.state().away = away;
    }

    /// Batches hang until they are let go on.
    pub fn hang(&self, hang: bool) {
        self.broker.open.send_replace(!hang);
    }

    /// Refuses what this says.
    pub fn refuse(&self, refusal: impl Fn(&Envelope) -> bool + Send + 'static) {
        self.state().refusal = Some(Box::new(refusal));
    }

    /// Refuses nothing any more.
    pub fn refuse_nothing(&self) {
        self.state().refusal = None;
    }

    /// What is sent is delivered as well, as by a broker that has the sender as a subscriber.
    pub fn loop_back(&self) {
        self.state().loops_back = true;
    }

    /// Delivers this content.
    pub fn deliver(&self, content: Content) {
        self.state().queue.push_back(content);
        self.broker.arrived.notify_one();
    }

    /// Everything accepted so far, repeats included, in order.
    pub fn accepted(&self) -> Vec<Envelope> {
        self.state().accepted.clone()
    }

    /// The ids accepted so far, each at its first time, in order.
    pub fn first_times(&self) -> Vec<Envelope> {
        let mut seen = HashSet::new();
        let accepted = self.accepted();
        accepted
            .into_iter()
            .filter(|envelope| seen.insert(envelope.id))
            .collect()
    }

    /// How many different messages were accepted.
    pub fn distinct(&self) -> usize {
        let state = self.state();
        let ids: HashSet<Uuid> = state.accepted.iter().map(|envelope| envelope.id).collect();
        ids.len()
    }

    /// How often a message was offered, refused and lost ones included.
    pub fn offered(&self) -> usize {
        self.state().offered
    }

    /// How many batches were ever under way at once.
    pub fn crowd(&self) -> usize {
        self.broker.crowd.load(Ordering::SeqCst)
    }

    /// How many deliveries were acknowledged, and how many given back.
    pub fn settled(&self) -> (usize, usize) {
        self.state().settled
    }

    fn error(&self, what: &str) -> TransportError {
        TransportError {
            transport: self.name.to_string(),
            what: what.to_owned(),
            source: None,
        }
    }

    async fn carry(&self, batch: &[Envelope]) -> Result<Vec<Sent>, TransportError> {
        if self.state().away {
            return Err(self.error("the broker cannot be reached"));
        }
        let mut open = self.broker.open.subscribe();
        if open.wait_for(|open| *open).await.is_err() {
            return Err(self.error("the broker is gone"));
        }
        let mut answers = Vec::with_capacity(batch.len());
        let mut refused = HashSet::new();
        for envelope in batch {
            let pause = self.state().pause();
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            answers.push(self.take(envelope, &mut refused));
        }
        let mut state = self.state();
        let faults = state.faults;
        if state.happens(faults.lose_answer) {
            return Err(self.error("the answer was lost"));
        }
        if state.happens(faults.answer_short) {
            let answered = state.random.random_range(0..=answers.len());
            answers.truncate(answered);
        }
        Ok(answers)
    }

    fn take(&self, envelope: &Envelope, refused: &mut HashSet<Uuid>) -> Sent {
        let mut state = self.state();
        state.offered += 1;
        let stream = envelope.stream.as_ref().map(|key| key.id());
        if stream.is_some_and(|stream| refused.contains(&stream)) {
            return Sent::Skipped;
        }
        let by_rule = state.refusal.as_ref().is_some_and(|rule| rule(envelope));
        let share = state.faults.refuse;
        if by_rule || state.happens(share) {
            refused.extend(stream);
            return Sent::Refused("the broker will not have it".to_owned());
        }
        state.accepted.push(envelope.clone());
        if state.loops_back {
            let raw = RawMessage::from_envelope(envelope);
            state.queue.push_back(Content::Message(Box::new(raw)));
            self.broker.arrived.notify_one();
        }
        Sent::Acknowledged
    }
}

impl State {
    fn happens(&mut self, share: f64) -> bool {
        share > 0.0 && self.random.random_bool(share)
    }

    fn pause(&mut self) -> Duration {
        let longest = self.faults.pause;
        longest.mul_f64(self.random.random_range(0.0..=1.0))
    }
}

impl Transport for FlakyTransport {
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
        Box::pin(async move {
            let broker = &self.broker;
            let now = broker.sending.fetch_add(1, Ordering::SeqCst) + 1;
            broker.crowd.fetch_max(now, Ordering::SeqCst);
            let _under_way = UnderWay(&broker.sending);
            self.carry(batch).await
        })
    }

    fn receive(
        &self,
        max: usize,
        wait: Duration,
    ) -> BoxFuture<'_, Result<Vec<Delivery>, TransportError>> {
        Box::pin(async move {
            let arrived = self.broker.arrived.notified();
            let batch = self.batch(max);
            if !batch.is_empty() {
                return Ok(batch);
            }
            // Waiting is only a courtesy: the caller asks again.
            let _ = tokio::time::timeout(wait, arrived).await;
            Ok(self.batch(max))
        })
    }
}

impl FlakyTransport {
    fn batch(&self, max: usize) -> Vec<Delivery> {
        let mut state = self.state();
        let count = max.min(state.queue.len());
        let contents: Vec<_> = state.queue.drain(..count).collect();
        let settle = |content: &Content| Settle {
            transport: self.clone(),
            content: Some(content.clone()),
        };
        contents
            .into_iter()
            .map(|content| {
                let settle = settle(&content);
                Delivery::new(content, settle)
            })
            .collect()
    }
}

struct UnderWay<'a>(&'a AtomicUsize);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Comes again when it is dropped without an answer.
struct Settle {
    transport: FlakyTransport,
    content: Option<Content>,
}

impl Acknowledge for Settle {
    fn ack(mut self: Box<Self>) -> BoxFuture<'static, Result<(), TransportError>> {
        self.content = None;
        self.transport.state().settled.0 += 1;
        Box::pin(std::future::ready(Ok(())))
    }

    fn nack(self: Box<Self>) -> BoxFuture<'static, Result<(), TransportError>> {
        self.transport.state().settled.1 += 1;
        Box::pin(std::future::ready(Ok(())))
    }
}

impl Drop for Settle {
    fn drop(&mut self) {
        if let Some(content) = self.content.take() {
            self.transport.deliver(content);
        }
    }
}
