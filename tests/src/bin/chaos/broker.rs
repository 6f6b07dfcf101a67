//! The broker: two queues, errands for clients, and what workers have counted.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::sync::Notify;

use super::{
    messages::Transfer,
    queue::Queue,
    wire::{Answer, Message, Request, Tally, Verdict},
};

/// How often a mishap that passes happens to one transfer.
const STRIKES: u32 = 2;
/// How long a client may take for an errand before another one gets it.
const ERRAND_WITHIN: Duration = Duration::from_secs(6);
/// Shares of batches and messages that go wrong on their way to the broker.
const AWAY: f64 = 0.02;
const ANSWER_LOST: f64 = 0.02;
const REFUSED: f64 = 0.01;

/// The broker. Clones share it.
#[derive(Clone)]
pub(crate) struct Broker(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    arrived: Notify,
}

struct State {
    random: StdRng,
    calm: bool,
    queues: HashMap<&'static str, Queue>,
    strikes: HashMap<i64, u32>,
    errands: VecDeque<Transfer>,
    given: HashMap<i64, (Transfer, Instant)>,
    receipts: HashMap<i64, HashSet<i64>>,
    counts: BTreeMap<usize, Tally>,
    sent: u64,
    answers_lost: u64,
    refused: u64,
}

/// What the broker has seen.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Traffic {
    pub(crate) delivered: u64,
    pub(crate) repeated: u64,
    pub(crate) sent: u64,
    pub(crate) answers_lost: u64,
    pub(crate) refused: u64,
}

/// The service that a type of message goes to.
fn route(message_type: &str) -> &'static str {
    match message_type {
        "chaos.debited" | "chaos.noticed" => "clearing",
        _ => "bank",
    }
}

impl Broker {
    pub(crate) fn new(seed: u64) -> Self {
        let queues = ["bank", "clearing"].map(|service| (service, Queue::default()));
        Self(Arc::new(Inner {
            state: Mutex::new(State {
                random: StdRng::seed_from_u64(seed),
                calm: false,
                queues: HashMap::from(queues),
                strikes: HashMap::new(),
                errands: VecDeque::new(),
                given: HashMap::new(),
                receipts: HashMap::new(),
                counts: BTreeMap::new(),
                sent: 0,
                answers_lost: 0,
                refused: 0,
            }),
            arrived: Notify::new(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A foreign service sends a message.
    pub(crate) fn put(&self, message: Message) {
        self.lock().put(message);
        self.0.arrived.notify_waiters();
    }

    /// A client is to execute this.
    pub(crate) fn run_errand(&self, transfer: Transfer) {
        self.lock().errands.push_back(transfer);
        self.0.arrived.notify_waiters();
    }

    /// From now on nothing goes wrong here, and what was to be repeated is repeated soon.
    pub(crate) fn calm_down(&self) {
        let mut state = self.lock();
        state.calm = true;
        state.queues.values_mut().for_each(Queue::hurry);
        drop(state);
        self.0.arrived.notify_waiters();
    }

    /// What is not acknowledged or not executed yet.
    pub(crate) fn backlog(&self) -> usize {
        let state = self.lock();
        let queues: usize = state.queues.values().map(Queue::backlog).sum();
        queues + state.errands.len() + state.given.len()
    }

    /// The same, with repeats to come.
    pub(crate) fn load(&self) -> usize {
        let state = self.lock();
        let queues: usize = state.queues.values().map(Queue::load).sum();
        queues + state.errands.len() + state.given.len()
    }

    /// What each transfer was answered with.
    pub(crate) fn receipts(&self) -> HashMap<i64, HashSet<i64>> {
        self.lock().receipts.clone()
    }

    /// What the workers have counted; what a killed one counted last is missing.
    pub(crate) fn tally(&self) -> Tally {
        let mut sum = Tally::default();
        for tally in self.lock().counts.values() {
            sum.add(tally);
        }
        sum
    }

    pub(crate) fn traffic(&self) -> Traffic {
        let state = self.lock();
        Traffic {
            delivered: state.queues.values().map(|queue| queue.delivered).sum(),
            repeated: state.queues.values().map(|queue| queue.repeated).sum(),
            sent: state.sent,
            answers_lost: state.answers_lost,
            refused: state.refused,
        }
    }

    /// Answers a worker.
    pub(crate) async fn answer(&self, request: Request) -> Answer {
        match request {
            Request::Send { messages } => {
                let answer = self.lock().send(messages);
                self.0.arrived.notify_waiters();
                answer
            }
            Request::Receive {
                service,
                max,
                wait_ms,
            } => {
                let taken = self
                    .wait(wait_ms, |state| {
                        Some(state.take(&service, max)).filter(|t| !t.is_empty())
                    })
                    .await;
                Answer::Delivered(taken.unwrap_or_default())
            }
            Request::Errand { wait_ms } => {
                Answer::Errand(self.wait(wait_ms, State::next_errand).await)
            }
            other => self.lock().note(other),
        }
    }

    /// Looks until there is something, or the time is over. Repeats fall due without a sign.
    async fn wait<T>(&self, millis: u64, look: impl Fn(&mut State) -> Option<T>) -> Option<T> {
        let until = Instant::now() + Duration::from_millis(millis.min(1_000));
        loop {
            let arrived = self.0.arrived.notified();
            let found = look(&mut self.lock());
            if found.is_some() || Instant::now() >= until {
                return found;
            }
            let step = Duration::from_millis(100);
            // Whether it was woken or not, it looks again.
            let _ = tokio::time::timeout(step, arrived).await;
        }
    }
}

impl State {
    fn happens(&mut self, share: f64) -> bool {
        !self.calm && self.random.random_bool(share)
    }

    fn put(&mut self, message: Message) {
        if let Some(queue) = self.queues.get_mut(route(&message.message_type)) {
            queue.put(message);
        }
    }

    fn send(&mut self, messages: Vec<Message>) -> Answer {
        if self.happens(AWAY) {
            return Answer::Away;
        }
        let mut verdicts = Vec::with_capacity(messages.len());
        let mut stopped = HashSet::new();
        for message in messages {
            let verdict = if message.stream.is_some_and(|it| stopped.contains(&it)) {
                Verdict::Skipped
            } else if self.happens(REFUSED) {
                self.refused += 1;
                stopped.extend(message.stream);
                Verdict::Refused
            } else {
                self.sent += 1;
                self.put(message);
                Verdict::Acknowledged
            };
            verdicts.push(verdict);
        }
        if self.happens(ANSWER_LOST) {
            self.answers_lost += 1;
            return Answer::Away;
        }
        Answer::Sent(verdicts)
    }

    fn take(&mut self, service: &str, max: usize) -> Vec<(u64, Message)> {
        let Self { queues, random, .. } = self;
        let queue = queues.get_mut(service);
        queue.map_or_else(Vec::new, |queue| queue.take(max, random))
    }

    fn next_errand(&mut self) -> Option<Transfer> {
        let now = Instant::now();
        let late = self.given.extract_if(|_, (_, until)| *until <= now);
        let late: Vec<_> = late.map(|(_, (transfer, _))| transfer).collect();
        self.errands.extend(late);
        let transfer = self.errands.pop_front()?;
        let until = now + ERRAND_WITHIN;
        self.given
            .insert(transfer.number, (transfer.clone(), until));
        Some(transfer)
    }

    fn note(&mut self, request: Request) -> Answer {
        match request {
            Request::Settle {
                service,
                delivery,
                done,
            } => {
                let Self { queues, random, .. } = self;
                if let Some(queue) = queues.get_mut(&*service) {
                    queue.settle(delivery, done, self.calm, random);
                }
            }
            Request::MayStrike { number } => {
                let strikes = self.strikes.entry(number).or_default();
                *strikes += 1;
                return Answer::Strike(*strikes <= STRIKES);
            }
            Request::Executed { number, effect } => {
                self.given.remove(&number);
                self.errands.retain(|transfer| transfer.number != number);
                self.receipts.entry(number).or_default().insert(effect);
            }
            Request::Counts { worker, tally } => {
                self.counts.insert(worker, tally);
            }
            Request::Send { .. } | Request::Receive { .. } | Request::Errand { .. } => {}
        }
        Answer::Done
    }
}
