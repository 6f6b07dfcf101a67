//! Settings of the runtime, with their defaults.

use std::time::Duration;

use crate::{Backoff, error::StartFault};

/// When a handler's circuit breaker opens, and for how long.
///
/// An outage of something that a handler depends on makes every message of it fail. The breaker
/// then stops claiming for that handler, so that the outage costs time and not the attempts of
/// thousands of messages. While it is open one message at a time is tried; its failure is not
/// counted as an attempt, its success closes the breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerPolicy {
    /// Different messages that must fail, with no success between them, before it opens.
    pub failures: u32,
    /// How long it stays open before the first trial; doubled after each failed trial.
    pub cool_down: Duration,
    /// Longest time between trials.
    pub longest_cool_down: Duration,
}

/// Settings of the runtime.
///
/// | setting | default |
/// |---|---|
/// | `concurrency` | 16, or what the connection pool allows |
/// | `max_attempts` | 10 |
/// | `backoff` | 1 s to 5 min |
/// | `handler_timeout` | 30 s |
/// | `lease` | 60 s, renewed at a third |
/// | `heartbeat` | every 5 s |
/// | `dead_after` | 30 s without heartbeat |
/// | `claim_batch` | 100 rows |
/// | `stream_run` | 20 rows of one stream at a time |
/// | `idle_poll` | 1 s |
/// | `relay_batch` | 500 rows |
/// | `relay_lease` | 15 s |
/// | `intake_batch` | 500 deliveries |
/// | `shutdown_deadline` | 30 s |
/// | `message_limit` | 1 MiB |
/// | `maintenance` | every minute |
/// | `execute_wait` | 10 s that a repeat waits for the first execution |
#[derive(Debug, Clone)]
pub struct RuntimeConfig {
    /// Messages worked on at once; `None` adapts to the pool.
    pub concurrency: Option<usize>,
    /// Attempts before the dead letters, unless the handler says otherwise.
    pub max_attempts: u32,
    /// Waits between attempts, unless the handler says otherwise.
    pub backoff: Backoff,
    /// Time for one attempt, unless the handler says otherwise.
    pub handler_timeout: Duration,
    /// How long a claim lasts without renewal.
    pub lease: Duration,
    /// Time between two signs of life.
    pub heartbeat: Duration,
    /// Silence after which peers take an instance for dead.
    pub dead_after: Duration,
    /// Most rows of one claim, and most rows held in memory.
    /// While batches are worked off in less than a tenth of a second, up to ten times as many.
    pub claim_batch: usize,
    /// Most rows of one stream in one claim.
    pub stream_run: usize,
    /// Time between two looks when nothing happens.
    pub idle_poll: Duration,
    /// Most outbox rows of one round.
    pub relay_batch: usize,
    /// How long one instance relays to a broker before it must say so again.
    pub relay_lease: Duration,
    /// Most deliveries stored at once.
    pub intake_batch: usize,
    /// How long `shutdown` waits for running handlers.
    pub shutdown_deadline: Duration,
    /// Largest payload in bytes.
    pub message_limit: usize,
    /// Time between two rounds of housekeeping; zero turns it off.
    pub maintenance: Duration,
    /// How long a repeat of a command waits for the first execution.
    pub execute_wait: Duration,
    /// The circuit breaker; `None` turns it off.
    pub breaker: Option<BreakerPolicy>,
}

impl Default for RuntimeConfig {
    fn default() -> Self {
        Self {
            concurrency: None,
            max_attempts: 10,
            backoff: Backoff::new(Duration::from_secs(1), Duration::from_secs(300)),
            handler_timeout: Duration::from_secs(30),
            lease: Duration::from_secs(60),
            heartbeat: Duration::from_secs(5),
            dead_after: Duration::from_secs(30),
            claim_batch: 100,
            stream_run: 20,
            idle_poll: Duration::from_secs(1),
            relay_batch: 500,
            relay_lease: Duration::from_secs(15),
            intake_batch: 500,
            shutdown_deadline: Duration::from_secs(30),
            message_limit: 1024 * 1024,
            maintenance: Duration::from_secs(60),
            execute_wait: Duration::from_secs(10),
            breaker: Some(BreakerPolicy {
                failures: 20,
                cool_down: Duration::from_secs(5),
                longest_cool_down: Duration::from_secs(60),
            }),
        }
    }
}

/// Concurrency when nothing is said and the pool does not limit it.
const DEFAULT_CONCURRENCY: usize = 16;

/// Connections left to claims, relay and maintenance when the pool has more than this.
const RESERVED_CONNECTIONS: usize = 3;

impl RuntimeConfig {
    /// How many messages are worked on at once with this many connections.
    pub fn effective_concurrency(&self, connections: Option<usize>) -> usize {
        self.concurrency.unwrap_or_else(|| {
            connections.map_or(DEFAULT_CONCURRENCY, |limit| {
                limit
                    .saturating_sub(RESERVED_CONNECTIONS)
                    .clamp(1, DEFAULT_CONCURRENCY)
            })
        })
    }

    /// Everything that is wrong with the settings.
    pub fn faults(&self, connections: Option<usize>) -> Vec<StartFault> {
        let mut faults = Vec::new();
        let mut require = |holds: bool, what: &str| {
            if !holds {
                faults.push(StartFault::Setting(what.to_owned()));
            }
        };
        require(self.max_attempts >= 1, "max_attempts must be at least 1");
        require(
            self.backoff.shortest <= self.backoff.longest,
            "the shortest backoff is longer than the longest",
        );
        require(
            !self.handler_timeout.is_zero(),
            "handler_timeout must be longer than zero",
        );
        require(
            self.lease >= Duration::from_millis(100),
            "lease must be at least 100 ms",
        );
        require(
            !self.heartbeat.is_zero() && self.dead_after >= self.heartbeat.saturating_mul(2),
            "dead_after must be at least two heartbeats, so that one late heartbeat kills nobody",
        );
        require(self.claim_batch >= 1, "claim_batch must be at least 1");
        require(self.stream_run >= 1, "stream_run must be at least 1");
        require(self.relay_batch >= 1, "relay_batch must be at least 1");
        require(self.intake_batch >= 1, "intake_batch must be at least 1");
        require(
            !self.idle_poll.is_zero(),
            "idle_poll must be longer than zero",
        );
        require(
            !self.relay_lease.is_zero(),
            "relay_lease must be longer than zero",
        );
        require(self.message_limit >= 1, "message_limit must be at least 1");
        require(
            self.concurrency != Some(0),
            "concurrency must be at least 1",
        );
        if let (Some(wanted), Some(limit)) = (self.concurrency, connections)
            && wanted > limit
        {
            faults.push(StartFault::Concurrency { wanted, limit });
        }
        faults
    }
}
