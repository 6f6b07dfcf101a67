//! One service's queue at the broker: reorders, repeats, and waits for acknowledgements.
//!
//! Messages of one stream are first delivered in order: a batch of them goes to one consumer, and
//! the next one only when all of it is settled. Everything else comes in any order. Repeats come at
//! any time, also of a stream.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use rand::{RngExt, rngs::StdRng, seq::SliceRandom};
use uuid::Uuid;

use super::wire::Message;

/// How long a delivery may stay without an answer before it comes again.
const PATIENCE: Duration = Duration::from_secs(3);
/// Share of messages that come again although they were acknowledged.
const REPEATED: f64 = 0.15;
/// Share of messages without a stream that come twice at once.
const DOUBLED: f64 = 0.1;
/// The longest time until a repeat comes.
const REPEAT_WITHIN: Duration = Duration::from_secs(8);
/// Most messages of one stream under way at once.
const STREAM_BATCH: usize = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Loose,
    Stream(Uuid),
    Repeat,
}

struct Flight {
    place: Place,
    position: u64,
    message: Message,
    until: Instant,
}

/// What waits for one service.
#[derive(Default)]
pub(crate) struct Queue {
    next: u64,
    loose: BTreeMap<u64, Message>,
    streams: BTreeMap<Uuid, BTreeMap<u64, Message>>,
    repeats: Vec<(Instant, Message)>,
    flying: HashMap<u64, Flight>,
    /// Deliveries beyond the first of each message.
    pub(crate) repeated: u64,
    /// All deliveries.
    pub(crate) delivered: u64,
}

impl Queue {
    pub(crate) fn put(&mut self, message: Message) {
        self.next += 1;
        let place = message.stream.map_or(Place::Loose, Place::Stream);
        self.give_back(place, self.next, message);
    }

    fn give_back(&mut self, place: Place, position: u64, message: Message) {
        match place {
            Place::Loose => {
                self.loose.insert(position, message);
            }
            Place::Stream(stream) => {
                let waiting = self.streams.entry(stream).or_default();
                waiting.insert(position, message);
            }
            Place::Repeat => self.repeats.push((Instant::now(), message)),
        }
    }

    /// What has not been acknowledged, and repeats still to come.
    pub(crate) fn load(&self) -> usize {
        let streams: usize = self.streams.values().map(BTreeMap::len).sum();
        self.loose.len() + streams + self.flying.len() + self.repeats.len()
    }

    /// The same without repeats to come.
    pub(crate) fn backlog(&self) -> usize {
        self.load() - self.repeats.len()
    }

    /// Everything that was to be repeated later is repeated now.
    pub(crate) fn hurry(&mut self) {
        let now = Instant::now();
        for (due, _) in &mut self.repeats {
            *due = now;
        }
    }

    /// Up to `max` deliveries.
    pub(crate) fn take(&mut self, max: usize, random: &mut StdRng) -> Vec<(u64, Message)> {
        self.expire();
        let max = max.min(random.random_range(1..=40));
        let mut groups = self.due_repeats();
        groups.extend(self.any_loose(max, random));
        groups.extend(self.stream_heads(random));
        groups.shuffle(random);
        let mut batch = Vec::new();
        for group in groups {
            if batch.len() >= max {
                // Not taken after all; a stream goes back whole, so its order stays.
                for (place, position, message) in group {
                    self.give_back(place, position, message);
                }
                continue;
            }
            for (place, position, message) in group {
                batch.push(self.fly(place, position, message));
            }
        }
        batch
    }

    fn fly(&mut self, place: Place, position: u64, message: Message) -> (u64, Message) {
        self.next += 1;
        self.delivered += 1;
        self.repeated += u64::from(place == Place::Repeat);
        let flight = Flight {
            place,
            position,
            message: message.clone(),
            until: Instant::now() + PATIENCE,
        };
        self.flying.insert(self.next, flight);
        (self.next, message)
    }

    /// Deliveries that nobody answered wait again.
    fn expire(&mut self) {
        let now = Instant::now();
        let late = self.flying.extract_if(|_, flight| flight.until <= now);
        for (_, flight) in late.collect::<Vec<_>>() {
            self.repeated += u64::from(flight.place != Place::Repeat);
            self.give_back(flight.place, flight.position, flight.message);
        }
    }

    fn due_repeats(&mut self) -> Vec<Vec<(Place, u64, Message)>> {
        let now = Instant::now();
        let due = self.repeats.extract_if(.., |(due, _)| *due <= now);
        due.map(|(_, message)| vec![(Place::Repeat, 0, message)])
            .collect()
    }

    fn any_loose(&mut self, max: usize, random: &mut StdRng) -> Vec<Vec<(Place, u64, Message)>> {
        let mut positions: Vec<u64> = self.loose.keys().copied().collect();
        positions.shuffle(random);
        positions.truncate(max);
        let mut taken = Vec::new();
        for position in positions {
            if let Some(message) = self.loose.remove(&position) {
                if random.random_bool(DOUBLED) {
                    self.repeats.push((Instant::now(), message.clone()));
                }
                taken.push(vec![(Place::Loose, position, message)]);
            }
        }
        taken
    }

    /// The first messages of each stream that has none under way.
    fn stream_heads(&mut self, random: &mut StdRng) -> Vec<Vec<(Place, u64, Message)>> {
        let flying = self.flying.values().map(|flight| flight.place);
        let busy: Vec<Place> = flying.collect();
        let mut groups = Vec::new();
        for (stream, waiting) in &mut self.streams {
            let place = Place::Stream(*stream);
            if busy.contains(&place) {
                continue;
            }
            let count = random.random_range(1..=STREAM_BATCH);
            let mut group = Vec::new();
            while group.len() < count
                && let Some((position, message)) = waiting.pop_first()
            {
                group.push((place, position, message));
            }
            groups.push(group);
        }
        groups
    }

    /// Ends a delivery. One that took too long is somebody else's by now.
    pub(crate) fn settle(&mut self, delivery: u64, done: bool, calm: bool, random: &mut StdRng) {
        let Some(flight) = self.flying.remove(&delivery) else {
            return;
        };
        if !done {
            self.repeated += u64::from(flight.place != Place::Repeat);
            self.give_back(flight.place, flight.position, flight.message);
        } else if flight.place != Place::Repeat && !calm && random.random_bool(REPEATED) {
            let due = Instant::now() + REPEAT_WITHIN.mul_f64(random.random());
            self.repeats.push((due, flight.message));
        }
    }
}
