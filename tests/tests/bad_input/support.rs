//! What the tests of bad input share.

use std::time::Duration;

use uuid::Uuid;
use whizbang::{Headers, store::DeadLetter, transport::RawMessage};
use whizbang_postgres::App;
use whizbang_tests::{Ping, World, note_stepped, note_twice, pay, scripted, wait_until};

/// Largest payload that the service under test accepts.
pub(super) const LIMIT: usize = 2_000;

/// Attempts of a message.
pub(super) const ATTEMPTS: u32 = 2;

/// A service with a handler for each kind of message.
pub(super) async fn start(world: &World) -> App {
    world
        .service()
        .register::<scripted>()
        .register::<note_twice>()
        .register::<note_stepped>()
        .register::<pay>()
        .configure(|config| {
            config.message_limit = LIMIT;
            config.max_attempts = ATTEMPTS;
            config.handler_timeout = Duration::from_secs(2);
        })
        .start()
        .await
        .expect("start")
}

/// A delivery with a fresh id and this payload.
pub(super) fn raw(message_type: &str, payload: impl Into<Vec<u8>>) -> RawMessage {
    RawMessage {
        id: Uuid::now_v7(),
        message_type: message_type.to_owned(),
        is_command: false,
        payload: payload.into(),
        stream: None,
        correlation_id: None,
        causation_id: None,
        headers: Headers::default(),
    }
}

/// The dead letters once there are this many.
pub(super) async fn letters(world: &World, app: &App, count: i64) -> Vec<DeadLetter> {
    world.dead_letters(count).await;
    app.dead_letters(0, 1_000).await.expect("dead letters")
}

/// A good message is handled by both of its handlers, and nothing is left over.
pub(super) async fn goes_on(world: &World) {
    const GOOD: i64 = 4_711;
    let before = world.effects("scripted", GOOD).await;
    world.feed(&Ping { number: GOOD });
    wait_until("a good message is handled", || async {
        world.effects("scripted", GOOD).await == before + 1
            && world.effects("note_twice", GOOD).await == before + 1
    })
    .await;
    world.quiet().await;
}
