//! What is asked of the bank: made from the seed, and all that the ledger needs to know what must
//! be there at the end.

use std::collections::{BTreeMap, BTreeSet};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use uuid::Uuid;
use whizbang::Envelope;

use super::{
    messages::{ACCOUNTS, Bomb, Mishap, Transfer, Trouble},
    wire::Message,
};

/// Handlers that something may happen in.
const HANDLERS: [&str; 6] = [
    "transfer",
    "statement",
    "credit",
    "tally",
    "settle",
    "notice",
];
/// Mishaps that pass, and those that do not, each in a thousand.
const PASSING: u32 = 40;
const DEADLY: u32 = 6;

/// How a transfer is asked for.
#[derive(Default)]
pub(crate) struct Errand {
    /// Through the broker, perhaps under several message ids.
    pub(crate) sent: Vec<Message>,
    /// By a client that executes it.
    pub(crate) executed: Option<Transfer>,
}

/// Everything that was asked for so far.
pub(crate) struct Plan {
    random: StdRng,
    pub(crate) transfers: Vec<Transfer>,
    /// Transfers that were sent under several message ids, and under how many.
    copies: BTreeMap<i64, i64>,
    pub(crate) bombs: BTreeSet<i64>,
    /// Ids of deliveries that cannot be read, and whether they are JSON at least.
    pub(crate) unreadable: BTreeMap<Uuid, bool>,
}

impl Plan {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            transfers: Vec::new(),
            copies: BTreeMap::new(),
            bombs: BTreeSet::new(),
            unreadable: BTreeMap::new(),
        }
    }

    /// The next transfer.
    pub(crate) fn transfer(&mut self) -> anyhow::Result<Errand> {
        let from = self.random.random_range(0..ACCOUNTS);
        let to = (from + self.random.random_range(1..ACCOUNTS)) % ACCOUNTS;
        let mut transfer = Transfer {
            id: Uuid::now_v7(),
            number: self.transfers.len().try_into()?,
            from,
            to,
            cents: self.random.random_range(1..100_000),
            trouble: self.trouble(),
        };
        let way = self.random.random_range(0..100);
        // A client would try what never works for ever.
        if way < 25
            && transfer
                .trouble
                .as_ref()
                .is_some_and(|it| it.mishap.is_deadly())
        {
            transfer.trouble = None;
        }
        self.transfers.push(transfer.clone());
        let mut errand = Errand::default();
        if way < 25 {
            errand.executed = Some(transfer.clone());
        }
        if way >= 20 {
            // A sender that did not hear of its success sends under another id.
            let ids = 1 + i64::from(way >= 90);
            self.copies.insert(transfer.number, ids);
            for _ in 0..ids {
                let envelope = Envelope::new(&transfer)?;
                errand.sent.push(Message::new(&envelope));
            }
        }
        Ok(errand)
    }

    /// Under how many message ids a transfer was sent.
    pub(crate) fn copies(&self, number: i64) -> i64 {
        self.copies.get(&number).copied().unwrap_or(1)
    }

    fn trouble(&mut self) -> Option<Trouble> {
        let roll = self.random.random_range(0..1_000);
        let passing = [Mishap::Fail, Mishap::Panic, Mishap::Fail, Mishap::Panic];
        let mishap = match roll {
            0..DEADLY => [Mishap::FailAlways, Mishap::Permanent][roll as usize % 2],
            // Seldom, since each costs a process or the whole timeout.
            6 => Mishap::Hang,
            7 => Mishap::Abort,
            8..PASSING => passing[roll as usize % passing.len()],
            _ => return None,
        };
        let handler = HANDLERS[self.random.random_range(0..HANDLERS.len())];
        Some(Trouble {
            handler: handler.to_owned(),
            mishap,
        })
    }

    /// A message that kills whoever handles it.
    pub(crate) fn bomb(&mut self) -> anyhow::Result<Message> {
        let number = -1 - i64::try_from(self.bombs.len())?;
        self.bombs.insert(number);
        Ok(Message::new(&Envelope::new(&Bomb { number })?))
    }

    /// A delivery that is no JSON, or no transfer.
    pub(crate) fn unreadable(&mut self) -> anyhow::Result<Message> {
        let envelope = Envelope::new(&Bomb { number: 0 })?;
        let is_json = self.random.random_bool(0.5);
        self.unreadable.insert(envelope.id, is_json);
        let payload = match is_json {
            true => "{\"number\":\"none\"}",
            false => "{\"number\":",
        };
        Ok(Message::new(&envelope).with_payload(payload))
    }
}
