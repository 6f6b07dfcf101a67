//! Everybody who gives the service something to do.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;
use whizbang::{
    BoxError, Dispatcher, Envelope, InTransaction, Message, StoreErrorKind, store::Store,
    testing::MemoryStore, transport::RawMessage,
};

use super::{
    chance::Dice,
    messages::{Closed, Loose, Moved, Opened, Pay, Stepped},
    plan::STORM,
    world::{World, lock},
};

/// Where a transaction notes what it has published.
pub(crate) const SENT: &str = "sent";

/// Accounts that money moves between.
const ACCOUNTS: &[&str] = &["a", "b", "c"];

/// Any message that the service handles.
enum Any {
    Stepped(Stepped),
    Opened(Opened),
    Closed(Closed),
    Loose(Loose),
    Moved(Moved),
}

fn any(world: &World, dice: &Dice, number: u64) -> Any {
    let stream = format!("s{}", dice.below(world.plan.streams));
    match dice.below(7) {
        0 | 1 => Any::Stepped(Stepped { stream, number }),
        2 => Any::Opened(Opened { stream, number }),
        3 => Any::Closed(Closed { stream, number }),
        4 | 5 => Any::Loose(Loose { number }),
        _ => Any::Moved(Moved {
            number,
            from: (*dice.pick(ACCOUNTS)).to_owned(),
            to: (*dice.pick(ACCOUNTS)).to_owned(),
            cents: 1 + dice.below(100) as i64,
        }),
    }
}

/// A key whose payload may differ from one request to the next.
pub(crate) fn is_odd(key: &str) -> bool {
    key.starts_with("odd")
}

fn payment(dice: &Dice) -> Pay {
    let number = dice.below(4);
    if dice.happens(0.2) {
        return Pay {
            key: format!("odd-{}", number % 2),
            cents: dice.below(2) as i64,
        };
    }
    Pay {
        key: format!("order-{number}"),
        cents: 100 + number as i64,
    }
}

fn raw<M: Message>(message: &M) -> RawMessage {
    let envelope = Envelope::new(message).expect("a message that encodes");
    RawMessage::from_envelope(&envelope)
}

/// Times spread over the storm.
async fn some_time(dice: &Dice, began: Instant) {
    let longest = STORM.mul_f64(0.9).as_millis() as u64;
    sleep_until_offset(began, dice.millis(0, longest)).await;
}

async fn sleep_until_offset(began: Instant, offset: Duration) {
    tokio::time::sleep_until(began + offset).await;
}

/// Foreign services that send through the broker.
pub(crate) async fn feed_broker(world: World, part: u64) {
    let dice = Dice::new(world.seed, 100 + part);
    some_time(&dice, Instant::now()).await;
    let message = if dice.happens(0.15) {
        raw(&payment(&dice))
    } else {
        match any(&world, &dice, part) {
            Any::Stepped(message) => raw(&message),
            Any::Opened(message) => raw(&message),
            Any::Closed(message) => raw(&message),
            Any::Loose(message) => raw(&message),
            Any::Moved(message) => raw(&message),
        }
    };
    world.accepted(message.id, &message.message_type);
    for _ in 0..=u32::from(dice.happens(0.2)) {
        world.broker.put(message.clone());
    }
}

/// A user's own transaction: a row and a message, or neither.
pub(crate) async fn transact(world: World, part: u64) {
    let dice = Dice::new(world.seed, 200 + part);
    some_time(&dice, Instant::now()).await;
    let Some(dispatcher) = world.dispatcher(&dice) else {
        return;
    };
    let id = Uuid::now_v7();
    let patience = dice.millis(5, 8000);
    let after = dice.happens(0.3).then(|| dice.millis(1, 6000));
    let work = publish(&world, &dice, &dispatcher, part, id, after);
    // An impatient caller drops the future; a failed one may have committed all the same.
    let _ = timeout(patience, work).await;
    if after.is_some() && dice.happens(0.5) {
        cancel(&world, &dice, id).await;
    }
}

async fn publish(
    world: &World,
    dice: &Dice,
    dispatcher: &Dispatcher<MemoryStore>,
    number: u64,
    id: Uuid,
    after: Option<Duration>,
) -> Result<(), BoxError> {
    let message = any(world, dice, number);
    let fails = dice.happens(0.1);
    dispatcher
        .transaction(async |tx| {
            let message_type = match &message {
                Any::Stepped(event) => send(dispatcher, tx, event, id, after).await?,
                Any::Opened(event) => send(dispatcher, tx, event, id, after).await?,
                Any::Closed(event) => send(dispatcher, tx, event, id, after).await?,
                Any::Loose(event) => send(dispatcher, tx, event, id, after).await?,
                Any::Moved(event) => send(dispatcher, tx, event, id, after).await?,
            };
            let row = json!({ "message": id, "type": message_type });
            tx.transaction_connection().append(SENT, row).await?;
            if fails {
                return Err::<(), BoxError>("the caller changed his mind".into());
            }
            Ok(())
        })
        .await
}

async fn send<E: whizbang::Event>(
    dispatcher: &Dispatcher<MemoryStore>,
    tx: &mut impl InTransaction<MemoryStore>,
    event: &E,
    id: Uuid,
    after: Option<Duration>,
) -> Result<&'static str, BoxError> {
    let mut outgoing = dispatcher.publish(tx, event).id(id);
    if let Some(after) = after {
        outgoing = outgoing.after(after);
    }
    outgoing.await?;
    Ok(E::NAME)
}

async fn cancel(world: &World, dice: &Dice, id: Uuid) {
    sleep(dice.millis(0, 4000)).await;
    let Some(dispatcher) = world.dispatcher(dice) else {
        return;
    };
    // Nobody knows until the answer is there.
    lock(&world.cancelled).insert(id, None);
    if let Ok(Ok(cancelled)) = timeout(Duration::from_secs(5), dispatcher.cancel(id)).await {
        lock(&world.cancelled).insert(id, Some(cancelled));
    }
}

/// Somebody who asks for a payment again and again until he has the reply.
pub(crate) async fn command(world: World, part: u64) {
    let dice = Dice::new(world.seed, 300 + part);
    some_time(&dice, Instant::now()).await;
    let pay = payment(&dice);
    let by_outbox = dice.happens(0.3);
    loop {
        if let Some(dispatcher) = world.dispatcher(&dice) {
            let done = if by_outbox {
                send_payment(&world, &dispatcher, &pay).await
            } else {
                execute(&world, &dice, &dispatcher, &pay).await
            };
            if done {
                return;
            }
        }
        sleep(dice.millis(10, 800)).await;
    }
}

async fn execute(
    world: &World,
    dice: &Dice,
    dispatcher: &Dispatcher<MemoryStore>,
    pay: &Pay,
) -> bool {
    let patience = dice.millis(5, 12_000);
    let executed = timeout(patience, async { dispatcher.execute(pay.clone()).await }).await;
    match executed {
        Ok(Ok(receipt)) => {
            lock(&world.replies)
                .entry(pay.key.clone())
                .or_default()
                .push(receipt.execution);
            true
        }
        Ok(Err(whizbang::ExecuteError::KeyReused { .. })) => {
            assert!(
                is_odd(&pay.key),
                "the payload of {} is always the same",
                pay.key
            );
            true
        }
        Ok(Err(_)) | Err(_) => false,
    }
}

async fn send_payment(world: &World, dispatcher: &Dispatcher<MemoryStore>, pay: &Pay) -> bool {
    let sent = dispatcher.transaction(async |tx| {
        dispatcher.send(tx, pay).await?;
        let row = json!({ "key": pay.key });
        tx.transaction_connection()
            .append("sent_commands", row)
            .await?;
        Ok::<(), BoxError>(())
    });
    let _ = world;
    // A repeat is harmless: the key decides.
    matches!(timeout(Duration::from_secs(5), sent).await, Ok(Ok(())))
}

/// What befalls the database itself.
pub(crate) async fn shake_database(world: World) {
    let dice = Dice::new(world.seed, 4);
    let began = Instant::now();
    for _ in 0..dice.below(3) {
        some_time(&dice, began).await;
        if world.is_calm() {
            return;
        }
        if dice.happens(0.5) {
            world.store.restart_database(dice.millis(10, 3000));
        } else {
            world.store.advance(dice.millis(10, 6000));
        }
    }
}

/// Requeues dead letters now and then.
pub(crate) async fn operate(world: World) {
    let dice = Dice::new(world.seed, 5);
    loop {
        sleep(dice.millis(500, 6000)).await;
        if dice.happens(0.5)
            && let Err(error) = requeue(&world).await
        {
            assert_eq!(
                error.kind,
                StoreErrorKind::Unavailable,
                "only while the database is down"
            );
        }
    }
}

/// Requeues every dead letter that may be.
pub(crate) async fn requeue(world: &World) -> Result<(), whizbang::StoreError> {
    let letters = world.store.dead_letters(0, 10_000).await?;
    let ids: Vec<_> = letters
        .iter()
        .filter(|letter| letter.reason != "key_reused")
        .map(|letter| letter.id)
        .collect();
    world.store.requeue(&ids).await?;
    Ok(())
}
