//! What must hold during and after every simulation.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::Value;
use uuid::Uuid;
use whizbang::store::DeadLetter;

use super::{
    broker::Passed,
    client::{SENT, is_odd},
    handlers::{ACCOUNTS, EFFECTS, PAYMENTS, handlers_of},
    world::{World, lock},
};

/// What was found to be wrong; nothing, if all is well.
pub(crate) type Faults = Vec<String>;

/// An effect as it was written.
struct Effect {
    handler: String,
    message: Uuid,
    stream: String,
    published: Option<Uuid>,
}

fn text(row: &Value, field: &str) -> String {
    row.get(field)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

fn id(row: &Value, field: &str) -> Option<Uuid> {
    row.get(field)?.as_str()?.parse().ok()
}

fn effects(rows: &[Value]) -> Vec<Effect> {
    rows.iter()
        .map(|row| Effect {
            handler: text(row, "handler"),
            message: id(row, "message").unwrap_or_default(),
            stream: text(row, "stream"),
            published: id(row, "published"),
        })
        .collect()
}

/// What can be seen at any time: no effect twice, no cent made or lost, no contradiction.
#[derive(Default)]
pub(crate) struct Watch {
    seen: HashSet<(String, Uuid)>,
    keys: HashSet<String>,
    effects: usize,
    payments: usize,
}

impl Watch {
    pub(crate) fn look(&mut self, world: &World) -> Faults {
        let mut faults = world.store.contradictions();
        let fresh = world.store.list_from(EFFECTS, self.effects);
        self.effects += fresh.len();
        for effect in effects(&fresh) {
            let place = (effect.handler, effect.message);
            if self.seen.contains(&place) {
                faults.push(format!("{} has handled {} twice", place.0, place.1));
            }
            self.seen.insert(place);
        }
        let fresh = world.store.list_from(PAYMENTS, self.payments);
        self.payments += fresh.len();
        for row in fresh {
            let key = text(&row, "key");
            if !self.keys.insert(key.clone()) {
                faults.push(format!("the command of key {key} was executed twice"));
            }
        }
        let balance: i64 = world
            .store
            .effects()
            .values
            .iter()
            .filter(|((table, _), _)| table == ACCOUNTS)
            .filter_map(|(_, value)| value.as_i64())
            .sum();
        if balance != 0 {
            faults.push(format!("the accounts add up to {balance}"));
        }
        faults
    }
}

/// What must hold when everything is done.
pub(crate) fn everything(world: &World, letters: &[DeadLetter]) -> Faults {
    let written = world.store.effects();
    let effects = effects(written.list(EFFECTS));
    let mut faults = each_once(world, &effects, written.list(SENT), letters);
    faults.extend(in_order(world, &effects));
    faults.extend(relayed(world, &effects, written.list(SENT)));
    faults.extend(replies(world, written.list(PAYMENTS)));
    faults
}

/// Every message that anybody accepted has had its effects, once each; nothing else has.
fn each_once(world: &World, effects: &[Effect], sent: &[Value], letters: &[DeadLetter]) -> Faults {
    let mut faults = Faults::new();
    let mut wanted: BTreeMap<(Uuid, &str), bool> = BTreeMap::new();
    let mut want = |message: Uuid, message_type: &str, certain: bool| {
        for handler in handlers_of(message_type) {
            wanted.insert((message, handler), certain);
        }
    };
    for (message, message_type) in lock(&world.accepted).iter() {
        want(*message, message_type, true);
    }
    let cancelled = lock(&world.cancelled);
    for row in sent {
        let message = id(row, "message").unwrap_or_default();
        match cancelled.get(&message) {
            Some(Some(true)) => {}
            Some(None) => want(message, &text(row, "type"), false),
            Some(Some(false)) | None => want(message, &text(row, "type"), true),
        }
    }
    for published in effects.iter().filter_map(|effect| effect.published) {
        want(published, "sim.followed", true);
    }
    let mut found: HashMap<(Uuid, &str), u32> = HashMap::new();
    for effect in effects {
        *found.entry((effect.message, &effect.handler)).or_default() += 1;
    }
    for ((message, handler), certain) in &wanted {
        let count = found.remove(&(*message, handler)).unwrap_or(0);
        if count > 1 || (*certain && count == 0) {
            faults.push(format!("{handler} has handled {message} {count} times"));
        }
    }
    for ((message, handler), count) in found {
        faults.push(format!(
            "{handler} has handled {message} {count} times, which nobody sent"
        ));
    }
    for letter in letters {
        if letter.reason != "key_reused" {
            faults.push(format!("a dead letter is left: {letter:?}"));
        }
    }
    faults
}

/// Within a lane and stream effects were committed in stored order.
fn in_order(world: &World, effects: &[Effect]) -> Faults {
    let mut faults = Faults::new();
    let mut places = HashMap::new();
    for row in world.store.journal() {
        // A requeued message has a new place.
        let place = (row.sequence, row.lane, row.stream_id);
        places.insert((row.message_id, row.handler), place);
    }
    let mut last: HashMap<(String, Uuid), (i64, Uuid)> = HashMap::new();
    for effect in effects {
        let key = (effect.message, effect.handler.clone());
        let Some((sequence, lane, Some(stream))) = places.get(&key) else {
            continue;
        };
        let before = last.insert((lane.clone(), *stream), (*sequence, effect.message));
        if let Some((earlier, message)) = before
            && earlier > *sequence
        {
            faults.push(format!(
                "in lane {lane}, stream {}, {} (place {sequence}) was handled after {message} (place {earlier})",
                effect.stream, effect.message
            ));
        }
    }
    faults
}

/// What handlers and users published has reached the broker, and each stream in order.
fn relayed(world: &World, effects: &[Effect], sent: &[Value]) -> Faults {
    let mut faults = Faults::new();
    let passed = world.broker.sent();
    let mut first: HashMap<Uuid, usize> = HashMap::new();
    for (place, message) in passed.iter().enumerate() {
        first.entry(message.id).or_insert(place);
    }
    let cancelled = lock(&world.cancelled);
    for row in sent {
        let message = id(row, "message").unwrap_or_default();
        if !cancelled.contains_key(&message) && !first.contains_key(&message) {
            faults.push(format!(
                "{message} of a transaction never reached the broker"
            ));
        }
    }
    // Handlers of one stream publish one after another, so their order is the stream's.
    let mut last: HashMap<&str, usize> = HashMap::new();
    for effect in effects {
        let Some(published) = effect.published else {
            continue;
        };
        let Some(place) = first.get(&published) else {
            faults.push(format!("{published} of a handler never reached the broker"));
            continue;
        };
        let before = last.insert(effect.stream.as_str(), *place);
        if before.is_some_and(|before| before > *place) {
            faults.push(format!(
                "{published} overtook an earlier message of stream {} on its way to the broker",
                effect.stream
            ));
        }
    }
    let committed = sent
        .iter()
        .filter_map(|row| id(row, "message"))
        .chain(effects.iter().filter_map(|effect| effect.published))
        .collect();
    faults.extend(unknown(&passed, &committed, &cancelled));
    faults
}

/// Nothing reached the broker that was not committed.
fn unknown(
    passed: &[Passed],
    committed: &HashSet<Uuid>,
    cancelled: &HashMap<Uuid, Option<bool>>,
) -> Faults {
    passed
        .iter()
        .filter_map(|message| {
            let was_cancelled = cancelled.get(&message.id) == Some(&Some(true));
            (!committed.contains(&message.id) || was_cancelled).then(|| {
                format!(
                    "{} {} reached the broker, but was never committed or was cancelled",
                    message.message_type, message.id
                )
            })
        })
        .collect()
}

/// All replies under one key are that of its one execution.
fn replies(world: &World, payments: &[Value]) -> Faults {
    let executions: HashMap<_, _> = payments
        .iter()
        .map(|row| {
            let execution = row.get("execution").and_then(Value::as_u64);
            (text(row, "key"), execution.unwrap_or(u64::MAX))
        })
        .collect();
    let mut faults = Faults::new();
    for (key, replies) in lock(&world.replies).iter() {
        let execution = executions.get(key);
        if replies.iter().any(|reply| Some(reply) != execution) {
            faults.push(format!(
                "key {key} (odd: {}) was executed as {execution:?} and answered with {replies:?}",
                is_odd(key)
            ));
        }
    }
    faults
}
