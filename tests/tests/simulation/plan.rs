//! What a seed decides before anything runs.

use std::time::Duration;

use whizbang::{Backoff, BreakerPolicy, RuntimeConfig};

use super::chance::Dice;

/// How long faults go on.
pub(crate) const STORM: Duration = Duration::from_secs(30);

/// How long a lease lasts.
pub(crate) const LEASE: Duration = Duration::from_secs(8);

/// How long it may take until everything is done once the faults have stopped: the leases of the
/// dead, one poll, and the longest pause of an actor, with the work itself.
pub(crate) const CALM: Duration = Duration::from_secs(20);

/// How often calls go wrong, as parts of all calls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rates {
    pub(crate) lost: f64,
    pub(crate) delayed: f64,
    pub(crate) long: f64,
    pub(crate) conflict: f64,
    pub(crate) stall: f64,
    pub(crate) crash: f64,
}

/// The outline of one simulation.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) instances: u64,
    pub(crate) rates: Rates,
    /// Failures of handlers, as parts of all calls.
    pub(crate) failing: f64,
    pub(crate) broker_messages: u64,
    pub(crate) transactions: u64,
    pub(crate) commands: u64,
    pub(crate) streams: u64,
    pub(crate) connections: Option<usize>,
    pub(crate) config: RuntimeConfig,
}

impl Plan {
    pub(crate) fn new(seed: u64) -> Self {
        let dice = Dice::new(seed, 1);
        let storm = *dice.pick(&[0.0, 0.3, 1.0, 1.0, 2.5]);
        let deaths = *dice.pick(&[0.0, 1.0, 4.0]);
        Self {
            instances: 1 + dice.below(3),
            rates: Rates {
                lost: 0.02 * storm,
                delayed: 0.06 * storm,
                long: 0.004 * storm,
                conflict: 0.01 * storm,
                stall: 0.001 * storm,
                crash: 0.0005 * deaths,
            },
            failing: *dice.pick(&[0.0, 0.1, 0.4]),
            broker_messages: 10 + dice.below(50),
            transactions: dice.below(20),
            commands: dice.below(15),
            streams: 1 + dice.below(4),
            connections: *dice.pick(&[None, None, Some(1), Some(2), Some(6)]),
            config: config(&dice),
        }
    }
}

fn config(dice: &Dice) -> RuntimeConfig {
    RuntimeConfig {
        max_attempts: 50,
        backoff: Backoff::new(Duration::from_millis(20), Duration::from_secs(1)),
        handler_timeout: Duration::from_secs(3),
        lease: LEASE,
        heartbeat: Duration::from_secs(1),
        dead_after: *dice.pick(&[Duration::from_secs(3), Duration::from_secs(6)]),
        claim_batch: *dice.pick(&[1, 3, 20, 100]),
        stream_run: *dice.pick(&[1, 2, 5, 20]),
        idle_poll: Duration::from_millis(500),
        relay_batch: *dice.pick(&[1, 4, 100]),
        relay_lease: Duration::from_secs(4),
        intake_batch: *dice.pick(&[1, 4, 50]),
        shutdown_deadline: Duration::from_secs(5),
        maintenance: Duration::from_secs(5),
        execute_wait: Duration::from_secs(2),
        breaker: *dice.pick(&[
            None,
            Some(BreakerPolicy {
                failures: 4,
                cool_down: Duration::from_millis(300),
                longest_cool_down: Duration::from_secs(2),
            }),
        ]),
        ..RuntimeConfig::default()
    }
}
