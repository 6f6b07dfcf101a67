//! Handlers that do what the test has written into their script.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::Semaphore;
use whizbang::{BoxError, HandlerError, Metadata, State, handler, idempotent_command};
use whizbang_postgres::HandlerContext;

use crate::{Noted, Pay, PayReceipt, Ping, Stepped};

/// What a handler does at one of its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Writes, publishes and succeeds.
    Succeed,
    /// Writes, then fails.
    Fail,
    /// Fails for good.
    Permanent,
    /// Writes, then panics.
    Panic,
    /// Writes, then waits until the test lets it go on.
    Wait,
    /// Writes, then takes this long.
    Pause(Duration),
    /// Writes, then takes this long without ever yielding.
    Block(Duration),
    /// Writes, then kills the process.
    Abort,
    /// Writes, then never returns.
    Hang,
    /// Is not ready yet.
    Snooze(Duration),
    /// Ends its own transaction.
    Commit,
    /// Ignores a failed statement.
    Swallow,
    /// Waits for a statement that takes longer than the timeout.
    SlowStatement,
    /// Fails with a text that is hard to store.
    HugeError,
}

/// The script of a test: what each message's calls do, and what the handlers wait for.
#[derive(Debug, Clone, Default)]
pub struct Script {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    steps: Mutex<HashMap<i64, Vec<Step>>>,
    calls: Mutex<HashMap<i64, u32>>,
    go: Semaphore,
    entered: Semaphore,
    outside: AtomicUsize,
    at_work: AtomicUsize,
    most_at_work: AtomicUsize,
}

/// A handler at work.
pub(crate) struct AtWork(Arc<Inner>);

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.at_work.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            steps: Mutex::default(),
            calls: Mutex::default(),
            go: Semaphore::new(0),
            entered: Semaphore::new(0),
            outside: AtomicUsize::new(0),
            at_work: AtomicUsize::new(0),
            most_at_work: AtomicUsize::new(0),
        }
    }
}

impl Script {
    /// Calls for message `number` do these steps, and then succeed.
    pub fn steps(&self, number: i64, steps: impl IntoIterator<Item = Step>) -> &Self {
        let mut all = self
            .inner
            .steps
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.insert(number, steps.into_iter().collect());
        self
    }

    /// How often a handler was called for message `number`.
    pub fn calls(&self, number: i64) -> u32 {
        let calls = self
            .inner
            .calls
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        calls.get(&number).copied().unwrap_or(0)
    }

    /// Lets one waiting handler go on.
    pub fn go(&self) {
        self.inner.go.add_permits(1);
    }

    /// Waits until a handler has reached its `Wait`.
    pub async fn entered(&self) {
        if let Ok(permit) = self.inner.entered.acquire().await {
            permit.forget();
        }
    }

    /// Counts something that happened outside of the database.
    pub(crate) fn called_outside(&self) {
        self.inner.outside.fetch_add(1, Ordering::SeqCst);
    }

    /// How often something happened outside of the database.
    pub fn calls_outside(&self) -> usize {
        self.inner.outside.load(Ordering::SeqCst)
    }

    /// Notes that a handler is at work until the guard is dropped.
    pub(crate) fn at_work(&self) -> AtWork {
        let inner = Arc::clone(&self.inner);
        let now = inner.at_work.fetch_add(1, Ordering::SeqCst) + 1;
        inner.most_at_work.fetch_max(now, Ordering::SeqCst);
        AtWork(inner)
    }

    /// How many handlers were ever at work at once.
    pub fn most_at_work(&self) -> usize {
        self.inner.most_at_work.load(Ordering::SeqCst)
    }

    pub(crate) fn next(&self, number: i64) -> Step {
        let mut calls = self
            .inner
            .calls
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let call = calls.entry(number).or_default();
        let index = *call as usize;
        *call += 1;
        let steps = self
            .inner
            .steps
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        steps
            .get(&number)
            .and_then(|steps| steps.get(index))
            .copied()
            .unwrap_or(Step::Succeed)
    }

    async fn wait(&self) {
        self.inner.entered.add_permits(1);
        if let Ok(permit) = self.inner.go.acquire().await {
            permit.forget();
        }
    }
}

pub(crate) async fn effect(
    cx: &mut HandlerContext<'_>,
    handler: &str,
    stream: &str,
    number: i64,
) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO effects (handler, stream, number) VALUES ($1, $2, $3)")
        .bind(handler)
        .bind(stream)
        .bind(number)
        .execute(cx.conn())
        .await
        .map(drop)
}

pub(crate) async fn play(
    script: &Script,
    cx: &mut HandlerContext<'_>,
    number: i64,
) -> Result<(), BoxError> {
    match script.next(number) {
        Step::Succeed => {}
        Step::Fail => return Err("the script says fail".into()),
        Step::Permanent => return Err(HandlerError::permanent("the script says never").into()),
        Step::Panic => panic!("the script says panic"),
        Step::Wait => script.wait().await,
        Step::Pause(time) => tokio::time::sleep(time).await,
        Step::Block(time) => std::thread::sleep(time),
        Step::Abort => std::process::abort(),
        Step::Hang => std::future::pending().await,
        Step::Snooze(delay) => return Err(HandlerError::snooze(delay).into()),
        Step::Commit => {
            sqlx::raw_sql("COMMIT").execute(cx.conn()).await?;
        }
        Step::Swallow => {
            let failed = sqlx::query("SELECT 1 / 0").execute(cx.conn()).await;
            assert!(failed.is_err());
        }
        Step::SlowStatement => {
            sqlx::query("SELECT pg_sleep(60)")
                .execute(cx.conn())
                .await?;
        }
        Step::HugeError => {
            let text = "it's \"bad\"\nand\0worse ".repeat(60_000);
            return Err(text.into());
        }
    }
    Ok(())
}

/// Writes one effect and publishes one event for each ping.
#[handler]
pub async fn scripted(
    ping: Ping,
    cx: &mut HandlerContext<'_>,
    State(script): State<Script>,
) -> Result<(), BoxError> {
    effect(cx, "scripted", "", ping.number).await?;
    cx.publish(&Noted {
        number: ping.number,
    })
    .await?;
    play(&script, cx, ping.number).await
}

/// A second handler of the same message.
#[handler]
pub async fn note_twice(ping: Ping, cx: &mut HandlerContext<'_>) -> Result<(), BoxError> {
    effect(cx, "note_twice", "", ping.number).await?;
    Ok(())
}

/// Writes one effect for each step, in order.
#[handler]
pub async fn note_stepped(
    step: Stepped,
    cx: &mut HandlerContext<'_>,
    State(script): State<Script>,
) -> Result<(), BoxError> {
    effect(cx, "note_stepped", &step.stream, step.number).await?;
    play(&script, cx, step.number).await
}

/// Another handler of steps, in a lane of its own that stops at a dead letter.
#[handler(lane = "careful", on_dead = "park", max_attempts = 1)]
pub async fn note_in_lane(
    step: Stepped,
    cx: &mut HandlerContext<'_>,
    State(script): State<Script>,
) -> Result<(), BoxError> {
    effect(cx, "note_in_lane", &step.stream, step.number).await?;
    play(&script, cx, step.number).await
}

/// A handler without transaction: counts in memory.
#[handler]
pub async fn note_plain(
    noted: Noted,
    State(script): State<Script>,
    meta: &Metadata,
) -> Result<(), BoxError> {
    assert!(meta.causation_id.is_some(), "published by a handler");
    script.next(1_000_000 + noted.number);
    Ok(())
}

/// Writes one payment for each key.
#[idempotent_command(key = payment_id)]
pub async fn pay(
    command: Pay,
    cx: &mut HandlerContext<'_>,
    State(script): State<Script>,
) -> Result<PayReceipt, BoxError> {
    let row: i64 = sqlx::query_scalar("INSERT INTO payments (cents) VALUES ($1) RETURNING id")
        .bind(command.cents)
        .fetch_one(cx.conn())
        .await?;
    cx.publish(&Noted {
        number: command.cents,
    })
    .await?;
    play(&script, cx, command.cents).await?;
    Ok(PayReceipt { row })
}
