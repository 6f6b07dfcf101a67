//! Handlers that write one effect each, and fail in every way there is while faults go on.

use std::{sync::Once, time::Duration};

use serde_json::json;
use tokio::time::sleep;
use uuid::Uuid;
use whizbang::{
    BoxError, HandlerError, Metadata, State, StoreError, handler, idempotent_command,
    testing::{MemoryConnection, MemoryStore},
};

use super::{
    messages::{Closed, Followed, Loose, Moved, Opened, Pay, Receipt, Stepped},
    world::{World, lock},
};

type Context<'c> = whizbang::Context<'c, MemoryStore>;
type LazyContext<'c> = whizbang::LazyContext<'c, MemoryStore>;

/// Where effects are written, in the order of their commits.
pub(crate) const EFFECTS: &str = "effects";
/// Where payments are written.
pub(crate) const PAYMENTS: &str = "payments";
/// Where accounts are kept.
pub(crate) const ACCOUNTS: &str = "accounts";

const PANIC: &str = "the dice say panic";

/// Keeps the panics that handlers are asked for out of the test's output.
pub(crate) fn silence_expected_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let expected = info.payload().downcast_ref::<&str>() == Some(&PANIC);
            if !expected {
                usual(info);
            }
        }));
    });
}

/// How one call goes.
#[derive(Debug, Clone, Copy)]
enum Way {
    Well,
    Slowly,
    FailsFirst,
    FailsLast,
    Later,
    Never,
    Panics,
    Hangs,
    SwallowsAnError,
}

fn way(world: &World) -> Way {
    if world.is_calm() {
        return Way::Well;
    }
    let dice = &world.handlers;
    if !dice.happens(world.plan.failing) {
        return if dice.happens(0.2) {
            Way::Slowly
        } else {
            Way::Well
        };
    }
    *dice.pick(&[
        Way::FailsFirst,
        Way::FailsFirst,
        Way::FailsLast,
        Way::FailsLast,
        Way::FailsLast,
        Way::Later,
        Way::Never,
        Way::Panics,
        Way::Hangs,
        Way::SwallowsAnError,
    ])
}

/// What happens before anything is written.
async fn begin(world: &World) -> Result<Way, BoxError> {
    let way = way(world);
    match way {
        Way::Slowly => sleep(world.handlers.millis(1, 2500)).await,
        Way::FailsFirst => return Err("the dice say fail".into()),
        Way::Later => {
            return Err(HandlerError::snooze(world.handlers.millis(1, 800)).into());
        }
        _ => {}
    }
    Ok(way)
}

/// What happens after everything is written.
async fn end(way: Way, connection: Option<&mut MemoryConnection>) -> Result<(), BoxError> {
    match way {
        Way::FailsLast => Err("the dice say fail at last".into()),
        Way::Never => Err(HandlerError::permanent("the dice say never").into()),
        Way::Panics => std::panic::panic_any(PANIC),
        Way::Hangs => std::future::pending().await,
        Way::SwallowsAnError => {
            if let Some(connection) = connection {
                assert!(connection.fail().await.is_err(), "it fails");
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// One effect of a message.
struct Effect<'a> {
    handler: &'a str,
    message: Uuid,
    stream: &'a str,
    published: Option<Uuid>,
}

async fn write(cx: &mut Context<'_>, effect: Effect<'_>) -> Result<(), StoreError> {
    let row = json!({
        "handler": effect.handler,
        "message": effect.message,
        "stream": effect.stream,
        "published": effect.published,
    });
    cx.conn().append(EFFECTS, row).await
}

/// Writes an effect in the stream and publishes what follows from it.
#[handler]
pub(crate) async fn step(
    event: Stepped,
    cx: &mut Context<'_>,
    State(world): State<World>,
    meta: &Metadata,
) -> Result<(), BoxError> {
    let way = begin(&world).await?;
    let follows = Followed {
        stream: event.stream.clone(),
        number: event.number,
    };
    let published = cx.publish(&follows).await?;
    let effect = Effect {
        handler: "step",
        message: meta.message_id,
        stream: &event.stream,
        published: Some(published),
    };
    write(cx, effect).await?;
    end(way, Some(cx.conn())).await
}

/// Has no transaction; what it does is outside the database.
#[handler]
pub(crate) async fn step_outside(
    event: Stepped,
    State(world): State<World>,
    meta: &Metadata,
) -> Result<(), BoxError> {
    let way = begin(&world).await?;
    let place = (event.stream, meta.message_id);
    *lock(&world.outside).entry(place).or_default() += 1;
    end(way, None).await
}

/// Writes an effect for what another handler has published.
#[handler]
pub(crate) async fn follow(
    event: Followed,
    cx: &mut Context<'_>,
    State(world): State<World>,
    meta: &Metadata,
) -> Result<(), BoxError> {
    let way = begin(&world).await?;
    let effect = Effect {
        handler: "follow",
        message: meta.message_id,
        stream: &event.stream,
        published: None,
    };
    write(cx, effect).await?;
    end(way, Some(cx.conn())).await
}

/// Shares the order of its lane.
#[handler(lane = "pair", on_dead = "park")]
pub(crate) async fn open(
    event: Opened,
    cx: &mut Context<'_>,
    State(world): State<World>,
    meta: &Metadata,
) -> Result<(), BoxError> {
    let way = begin(&world).await?;
    let effect = Effect {
        handler: "open",
        message: meta.message_id,
        stream: &event.stream,
        published: None,
    };
    write(cx, effect).await?;
    end(way, Some(cx.conn())).await
}

/// Shares the order of its lane.
#[handler(lane = "pair", on_dead = "park")]
pub(crate) async fn close(
    event: Closed,
    cx: &mut Context<'_>,
    State(world): State<World>,
    meta: &Metadata,
) -> Result<(), BoxError> {
    let way = begin(&world).await?;
    let effect = Effect {
        handler: "close",
        message: meta.message_id,
        stream: &event.stream,
        published: None,
    };
    write(cx, effect).await?;
    end(way, Some(cx.conn())).await
}

/// Belongs to no stream.
#[handler(concurrency = 1)]
pub(crate) async fn loose(
    event: Loose,
    cx: &mut Context<'_>,
    State(world): State<World>,
    meta: &Metadata,
) -> Result<(), BoxError> {
    let way = begin(&world).await?;
    let stream = format!("none {}", event.number);
    let effect = Effect {
        handler: "loose",
        message: meta.message_id,
        stream: &stream,
        published: None,
    };
    write(cx, effect).await?;
    end(way, Some(cx.conn())).await
}

/// Works outside first and opens its transaction afterwards.
#[handler]
pub(crate) async fn loose_lazy(
    event: Loose,
    lazy: &mut LazyContext<'_>,
    State(world): State<World>,
    meta: &Metadata,
) -> Result<(), BoxError> {
    let way = begin(&world).await?;
    sleep(Duration::from_millis(event.number % 40)).await;
    let cx = lazy.begin().await?;
    let effect = Effect {
        handler: "loose_lazy",
        message: meta.message_id,
        stream: "none",
        published: None,
    };
    write(cx, effect).await?;
    end(way, Some(cx.conn())).await
}

/// Moves money. Accounts are locked in the order of the message, so that some transfers deadlock.
#[handler]
pub(crate) async fn move_money(
    event: Moved,
    cx: &mut Context<'_>,
    State(world): State<World>,
    meta: &Metadata,
) -> Result<(), BoxError> {
    let way = begin(&world).await?;
    for (account, cents) in [(&event.from, -event.cents), (&event.to, event.cents)] {
        let held = cx.conn().get_for_update(ACCOUNTS, account).await?;
        let balance = held.and_then(|value| value.as_i64()).unwrap_or(0);
        let new = json!(balance + cents);
        cx.conn().put(ACCOUNTS, account, new).await?;
    }
    let effect = Effect {
        handler: "move_money",
        message: meta.message_id,
        stream: "none",
        published: None,
    };
    write(cx, effect).await?;
    end(way, Some(cx.conn())).await
}

/// Takes effect once for each key.
#[idempotent_command(key = key)]
pub(crate) async fn pay(
    command: Pay,
    cx: &mut Context<'_>,
    State(world): State<World>,
) -> Result<Receipt, BoxError> {
    let way = begin(&world).await?;
    let execution = world.execution();
    let row = json!({ "key": command.key, "cents": command.cents, "execution": execution });
    cx.conn().append(PAYMENTS, row).await?;
    end(way, Some(cx.conn())).await?;
    Ok(Receipt { execution })
}

/// Handlers of a message type, without those outside the database.
pub(crate) fn handlers_of(message_type: &str) -> &'static [&'static str] {
    match message_type {
        "sim.stepped" => &["step"],
        "sim.followed" => &["follow"],
        "sim.opened" => &["open"],
        "sim.closed" => &["close"],
        "sim.loose" => &["loose", "loose_lazy"],
        "sim.moved" => &["move_money"],
        _ => &[],
    }
}
