//! Handlers that fail at random, in a way that a seed repeats.

use uuid::Uuid;
use whizbang::Metadata;

/// Decides which calls of which handlers fail.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mishaps {
    seed: u64,
}

/// What went wrong.
#[derive(Debug, thiserror::Error)]
#[error("a mishap at attempt {attempt} of `{handler}`, as the seed wants it")]
pub(crate) struct Mishap {
    handler: String,
    attempt: u32,
}

impl Mishaps {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Fails the first attempt for about one order in sixteen, the second as well for one in a
    /// hundred; never more often, so that no message is lost to mishaps.
    pub(crate) fn strike(&self, metadata: &Metadata, order_id: Uuid) -> Result<(), Mishap> {
        let roll = self.roll(&metadata.handler, order_id) % 256;
        let failures = match roll {
            0..3 => 2,
            3..16 => 1,
            _ => 0,
        };
        if metadata.attempt > failures {
            return Ok(());
        }
        Err(Mishap {
            handler: metadata.handler.clone(),
            attempt: metadata.attempt,
        })
    }

    /// A number that depends on nothing but its inputs: FNV-1a over seed, handler and order.
    fn roll(&self, handler: &str, order_id: Uuid) -> u64 {
        let seed = self.seed.to_le_bytes();
        let bytes = seed
            .iter()
            .chain(handler.as_bytes())
            .chain(order_id.as_bytes());
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        hash ^ (hash >> 32)
    }
}
