//! What goes wrong between a process and its database, by the dice.

use std::time::Duration;

use tokio::time::Instant;
use whizbang::testing::{Fault, Faults, Operation};

use super::{chance::Dice, world::World};

/// The faults of one process.
pub(crate) struct Storm {
    world: World,
    dice: Dice,
}

impl Storm {
    pub(crate) fn new(world: &World, process: u64) -> Self {
        Self {
            world: world.clone(),
            dice: Dice::new(world.seed, 1000 + process),
        }
    }

    fn lingers(&self) -> Duration {
        if self.dice.happens(0.3) {
            self.dice.millis(1, 2500)
        } else {
            Duration::ZERO
        }
    }

    /// A stop of the process that is over when the faults are.
    fn stall(&self) -> Fault {
        let left = self.world.ends.saturating_duration_since(Instant::now());
        Fault::Stall(self.dice.millis(500, 15_000).min(left))
    }

    /// What both ends of a call have in common: one throw decides.
    fn common(&self) -> Fault {
        let rates = &self.world.plan.rates;
        let mut throw = self.dice.part();
        let mut falls = |chance: f64| {
            throw -= chance;
            throw < 0.0
        };
        if falls(rates.crash) {
            Fault::Crash
        } else if falls(rates.stall) {
            self.stall()
        } else if falls(rates.long) {
            Fault::Delay(self.dice.millis(500, 12_000))
        } else if falls(rates.delayed) {
            Fault::Delay(self.dice.millis(1, 200))
        } else if falls(rates.lost) {
            Fault::Lost {
                lingers: self.lingers(),
            }
        } else if falls(rates.conflict) {
            Fault::Conflict
        } else {
            Fault::None
        }
    }
}

impl Faults for Storm {
    fn before(&self, operation: Operation) -> Fault {
        if self.world.is_calm() {
            return Fault::None;
        }
        let lost = self.world.plan.rates.lost;
        if operation == Operation::Commit && self.dice.happens(lost) {
            return Fault::Late(self.dice.millis(1, 2500));
        }
        self.common()
    }

    fn after(&self, _operation: Operation) -> Fault {
        if self.world.is_calm() {
            return Fault::None;
        }
        match self.common() {
            // Whatever was in the way shows before a statement has had its effect.
            Fault::Conflict => Fault::None,
            fault => fault,
        }
    }
}
