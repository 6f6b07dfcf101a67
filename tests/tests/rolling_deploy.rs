//! A rolling deploy: two versions of one service, swapped back and forth under load.
//!
//! The new version has a handler more, one less, one whose function has another name, and a message
//! type that the old one has never heard of. The test program starts itself as either version.

use std::{
    io::Write,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};
use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncBufReadExt, BufReader};
use whizbang::{BoxError, Event, handler};
use whizbang_postgres::{Builder, Dispatcher, HandlerContext};
use whizbang_tests::{World, wait_until};

/// Where the database of an instance is; set for instances only.
const DATABASE: &str = "WHIZBANG_ROLLING_DATABASE";
/// Which version it is.
const VERSION: &str = "WHIZBANG_ROLLING_VERSION";

const STREAMS: i64 = 5;

#[derive(Debug, Serialize, Deserialize, Event)]
#[message(name = "rolling.placed", stream = stream)]
struct Placed {
    stream: i64,
    number: i64,
}

/// Known to the new version only.
#[derive(Debug, Serialize, Deserialize, Event)]
#[message(name = "rolling.rated", stream = stream)]
struct Rated {
    stream: i64,
    number: i64,
}

async fn effect(cx: &mut HandlerContext<'_>, stream: i64, number: i64) -> Result<(), sqlx::Error> {
    let handler = cx.metadata().handler.clone();
    sqlx::query("INSERT INTO effects (handler, stream, number) VALUES ($1, $2, $3)")
        .bind(handler)
        .bind(stream.to_string())
        .bind(number)
        .execute(cx.conn())
        .await
        .map(drop)
}

/// In both versions.
#[handler]
async fn kept(event: Placed, cx: &mut HandlerContext<'_>) -> Result<(), BoxError> {
    Ok(effect(cx, event.stream, event.number).await?)
}

/// In the old version only.
#[handler]
async fn removed(event: Placed, cx: &mut HandlerContext<'_>) -> Result<(), BoxError> {
    Ok(effect(cx, event.stream, event.number).await?)
}

/// In the old version under its own name.
#[handler]
async fn renamed(event: Placed, cx: &mut HandlerContext<'_>) -> Result<(), BoxError> {
    Ok(effect(cx, event.stream, event.number).await?)
}

/// The same handler in the new version.
#[handler(name = "renamed")]
async fn better_name(event: Placed, cx: &mut HandlerContext<'_>) -> Result<(), BoxError> {
    Ok(effect(cx, event.stream, event.number).await?)
}

/// In the new version only; publishes what the old one does not know.
#[handler]
async fn added(event: Placed, cx: &mut HandlerContext<'_>) -> Result<(), BoxError> {
    effect(cx, event.stream, event.number).await?;
    let Placed { stream, number } = event;
    cx.publish(&Rated { stream, number }).await?;
    Ok(())
}

/// In the new version only.
#[handler]
async fn rated(event: Rated, cx: &mut HandlerContext<'_>) -> Result<(), BoxError> {
    Ok(effect(cx, event.stream, event.number).await?)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    Old,
    New,
}

fn service(world: &World, version: Version) -> Builder {
    let service = world.service().register::<kept>().configure(|config| {
        config.lease = Duration::from_millis(800);
        config.heartbeat = Duration::from_millis(200);
        config.dead_after = Duration::from_secs(2);
        config.max_attempts = 1_000;
    });
    match version {
        Version::Old => service.register::<renamed>().register::<removed>(),
        Version::New => service
            .register::<better_name>()
            .register::<added>()
            .register::<rated>(),
    }
}

/// Not a test: what an instance runs. In the test program itself it has nothing to do.
#[test]
fn instance() {
    let Ok(url) = std::env::var(DATABASE) else {
        return;
    };
    let version = match std::env::var(VERSION).as_deref() {
        Ok("new") => Version::New,
        _ => Version::Old,
    };
    let options: PgConnectOptions = url.parse().expect("a URL");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let world = World::joined(options);
        let app = service(&world, version).start().await.expect("start");
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        if lines.next_line().await.ok().flatten().is_none() {
            // The test is over, however it ended.
            std::process::exit(1);
        }
        app.shutdown().await.expect("shutdown");
    });
}

/// An instance in a process of its own; killed at the latest when the test is over.
struct Instance(Child);

impl Instance {
    fn start(world: &World, version: Version) -> Self {
        let program = std::env::current_exe().expect("this program");
        let child = Command::new(program)
            .args(["--exact", "instance", "--nocapture"])
            .env(DATABASE, world.database().url())
            .env(
                VERSION,
                match version {
                    Version::Old => "old",
                    Version::New => "new",
                },
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("an instance");
        Self(child)
    }

    fn kill(mut self) {
        self.0.kill().expect("kill");
        self.0.wait().expect("wait");
    }

    async fn shut_down(mut self) {
        let mut input = self.0.stdin.take().expect("its input");
        input.write_all(b"stop\n").expect("it listens");
        let patience = Duration::from_secs(20);
        let ended = tokio::time::timeout(patience, async {
            while self.0.try_wait().expect("wait").is_none() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        assert!(ended.await.is_ok(), "it does not end");
        assert!(self.0.wait().expect("wait").success());
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // It may have ended by itself, which is no failure of the test.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Publishes until it is told to stop; all below `next` are committed.
async fn publish(world: &World, dispatcher: Dispatcher, next: &AtomicI64, over: &AtomicBool) {
    while !over.load(Ordering::Acquire) {
        let number = next.load(Ordering::Acquire);
        let placed = Placed {
            stream: number % STREAMS,
            number,
        };
        let mut tx = world.pool.begin().await.expect("begin");
        dispatcher.publish(&mut tx, &placed).await.expect("publish");
        tx.commit().await.expect("commit");
        next.store(number + 1, Ordering::Release);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until this handler has dealt with some more messages.
async fn progress(world: &World, handler: &str) {
    const MORE: i64 = 10;
    let done = || async {
        let sql = "SELECT count(*) FROM effects WHERE handler = $1";
        let count: i64 = sqlx::query_scalar(sql)
            .bind(handler)
            .fetch_one(&world.pool)
            .await
            .expect("a count");
        count
    };
    let before = done().await;
    wait_until(handler, || async { done().await > before + MORE }).await;
}

/// What a handler has seen, in order.
async fn seen(world: &World, handler: &str) -> Vec<(String, i64)> {
    sqlx::query_as("SELECT stream, number FROM effects WHERE handler = $1 ORDER BY id")
        .bind(handler)
        .fetch_all(&world.pool)
        .await
        .expect("effects")
}

/// Each of these numbers exactly once, and each stream in order.
fn assert_once_in_order(what: &str, seen: &[(String, i64)], from: i64, to: i64) {
    let mut numbers: Vec<i64> = seen.iter().map(|(_, number)| *number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (from..to).collect::<Vec<_>>(), "{what}");
    for stream in 0..STREAMS {
        let name = stream.to_string();
        let of_stream = seen.iter().filter(|(stream, _)| *stream == name);
        let in_order: Vec<i64> = of_stream.map(|(_, number)| *number).collect();
        assert!(
            in_order.is_sorted(),
            "{what}, stream {stream}: {in_order:?}"
        );
    }
}

#[tokio::test]
async fn every_handler_of_both_versions_sees_each_of_its_messages_once() {
    use Version::{New, Old};
    let world = World::new().await;
    let app = service(&world, Old).start().await.expect("start");
    app.shutdown().await.expect("shutdown");
    let next = Arc::new(AtomicI64::new(0));
    let over = AtomicBool::new(false);
    let swapping = async {
        let mut one = Instance::start(&world, Old);
        let mut other = Instance::start(&world, Old);
        progress(&world, "removed").await;
        let before_new = next.load(Ordering::Acquire);
        other.kill();
        other = Instance::start(&world, New);
        wait_until("the new version has started", || async {
            let sql = "SELECT count(*) FROM wh_subscriptions WHERE handler_name = 'added'";
            world.count(sql).await == 1
        })
        .await;
        let with_new = next.load(Ordering::Acquire);
        progress(&world, "rated").await;
        // Forward, back and forward again, by turns with a shutdown and a kill.
        for (round, version) in [New, Old, New, Old].into_iter().enumerate() {
            let (leaving, staying) = (one, other);
            if round % 2 == 0 {
                leaving.shut_down().await;
            } else {
                leaving.kill();
            }
            (one, other) = (staying, Instance::start(&world, version));
            let witness = match version {
                New => "added",
                Old => "removed",
            };
            progress(&world, witness).await;
            progress(&world, "kept").await;
        }
        over.store(true, Ordering::Release);
        (one, other, before_new, with_new)
    };
    let publishing = publish(&world, app.dispatcher(), &next, &over);
    let ((one, other, before_new, with_new), ()) = tokio::join!(swapping, publishing);
    wait_until("nothing is left", || world.is_quiet()).await;
    let end = next.load(Ordering::Acquire);
    println!("{end} messages, the new version from {with_new} on");
    for handler in ["kept", "renamed", "removed"] {
        assert_once_in_order(handler, &seen(&world, handler).await, 0, end);
    }
    for handler in ["added", "rated"] {
        let seen = seen(&world, handler).await;
        // What was stored while the new version was starting may be its or not.
        let first = seen.iter().map(|(_, number)| *number).min().unwrap_or(end);
        assert!(first <= with_new, "{handler} missed {with_new}..{first}");
        println!("{handler} began at {first}; {before_new} were published before");
        assert_once_in_order(handler, &seen, first, end);
    }
    assert_eq!(world.count("SELECT count(*) FROM wh_dead_letters").await, 0);
    one.shut_down().await;
    other.shut_down().await;
}
