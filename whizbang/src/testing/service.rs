//! The service as a whole: who it is, which processes run, what they listen to.

use std::time::Duration;

use uuid::Uuid;

use super::{
    clock::{Time, earlier},
    leases::{Ended, release},
    tables::{Listener, Tables},
};
use crate::{
    StoreError, StoreErrorKind,
    store::{Heartbeat, Instance, StoreResult, Subscription},
};

/// Claims the schema for the service, and writes the instance and its subscriptions.
pub(super) fn register(
    tables: &mut Tables,
    instance: &Instance,
    subscriptions: &[Subscription],
    now: Time,
) -> StoreResult<()> {
    let owner = tables
        .service
        .get_or_insert_with(|| instance.service.clone());
    if *owner != instance.service {
        return Err(StoreError::message(
            StoreErrorKind::Setup,
            format!(
                "the store belongs to service `{owner}`, not to `{}`; give each service a store of its own",
                instance.service
            ),
        ));
    }
    tables.instances.insert(instance.id, now);
    listen(tables, subscriptions, now);
    Ok(())
}

fn listen(tables: &mut Tables, subscriptions: &[Subscription], now: Time) {
    for line in subscriptions {
        let known = tables
            .subscriptions
            .iter_mut()
            .find(|known| known.handler == line.handler && known.message_type == line.message_type);
        match known {
            Some(known) => {
                known.last_seen = now;
                known.lane.clone_from(&line.lane);
            }
            None => tables.subscriptions.push(Listener {
                handler: line.handler.clone(),
                message_type: line.message_type.clone(),
                lane: line.lane.clone(),
                last_seen: now,
            }),
        }
    }
}

/// Says that the instance lives, and releases what dead peers held.
pub(super) fn heartbeat(
    tables: &mut Tables,
    instance: Uuid,
    subscriptions: &[Subscription],
    dead_after: Duration,
    now: Time,
) -> Heartbeat {
    let known = match tables.instances.get_mut(&instance) {
        Some(seen) => {
            *seen = now;
            true
        }
        None => false,
    };
    listen(tables, subscriptions, now);
    let silent = earlier(now, dead_after);
    let dead: Vec<_> = tables
        .instances
        .iter()
        .filter(|(id, seen)| **id != instance && **seen < silent)
        .map(|(id, _)| *id)
        .collect();
    let mut released = 0;
    for peer in &dead {
        let ended = Ended {
            instance: *peer,
            tokens: None,
            lost: true,
        };
        let (count, left) = release(tables, &ended, now);
        released += count;
        tables.relays.retain(|_, relay| relay.instance != *peer);
        if !left {
            tables.instances.remove(peer);
        }
    }
    Heartbeat {
        known,
        dead_peers: u32::try_from(dead.len()).unwrap_or(u32::MAX),
        released,
    }
}

/// Takes the instance off the list and gives back what it holds.
pub(super) fn deregister(tables: &mut Tables, instance: Uuid, now: Time) {
    let ended = Ended {
        instance,
        tokens: None,
        lost: false,
    };
    release(tables, &ended, now);
    tables.relays.retain(|_, relay| relay.instance != instance);
    tables.instances.remove(&instance);
}
