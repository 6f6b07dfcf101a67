//! Workers that fail, stall, die and come back, on several connections, from a seed.
//!
//! Invariants: every row takes effect exactly once or is a dead letter; within a stream, effects
//! commit in stored order; nothing is left in the end. A zombie that goes on after its lease has
//! run out is part of the mix, so a missing fence shows.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicI64, Ordering},
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::support::{
    Claim, Db, Message, Offer, Outcome, Work, begin, claim, close, complete_here, exec, next,
    report, store, until,
};

const EFFECTS: &str = "CREATE TABLE effects (id bigint GENERATED ALWAYS AS IDENTITY, message_id uuid, handler text, stream_id uuid, sequence bigint)";
/// What is left, for the message of a failure.
const LEFT: &str = "SELECT (SELECT count(*) FROM wh_inbox) || ' rows, gates ' || coalesce((SELECT string_agg(g.due_at - clock_timestamp() || ' ' || coalesce(g.lease_token::text, 'free') || ' ' || (SELECT count(*) FROM wh_inbox i WHERE i.stream_id = g.stream_id), '; ') FROM wh_inbox_streams g), 'none')";
const STREAMS: usize = 3;
const MESSAGES: i64 = 600;

struct Shared {
    stored: AtomicI64,
    drained: AtomicBool,
}

async fn producer(
    mut connection: PgConnection,
    shared: Arc<Shared>,
    streams: Vec<Uuid>,
    seed: u64,
) -> Outcome {
    let mut random = StdRng::seed_from_u64(seed);
    let mut known: Vec<Message> = Vec::new();
    while shared.stored.load(Ordering::SeqCst) < MESSAGES {
        let mut batch: Vec<_> = (0..random.random_range(1..12))
            .map(|_| Message {
                kind: if random.random_bool(0.5) { "t" } else { "u" },
                stream: random
                    .random_bool(0.8)
                    .then(|| streams[random.random_range(0..streams.len())]),
                ..Message::new()
            })
            .collect();
        if let Some(again) = known.last().filter(|_| random.random_bool(0.3)) {
            batch.push(again.clone());
        }
        let stored = store(&mut connection, &batch, None).await?;
        let new = stored.iter().filter(|one| one.was_newly_created).count();
        shared
            .stored
            .fetch_add(i64::try_from(new)?, Ordering::SeqCst);
        known = batch;
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// How a worker treats one row.
async fn handle(
    connection: &mut PgConnection,
    random: &mut StdRng,
    work: &Work,
    last: bool,
) -> anyhow::Result<Option<bool>> {
    if random.random_bool(0.05) {
        // Longer than any lease of this test: what follows is the zombie's.
        tokio::time::sleep(std::time::Duration::from_millis(120)).await;
    }
    begin(connection, work).await?;
    sqlx::query(
        "INSERT INTO effects (message_id, handler, stream_id, sequence) VALUES ($1, $2, $3, $4)",
    )
    .bind(work.id)
    .bind(&work.handler)
    .bind(work.stream)
    .bind(work.sequence)
    .execute(&mut *connection)
    .await?;
    if random.random_bool(0.15) {
        exec(connection, "ROLLBACK").await?;
        let actions = ["retry", "snooze", "release", "retry"];
        let action = actions[random.random_range(0..actions.len())];
        if random.random_bool(0.7) {
            report(
                connection,
                work,
                action,
                random.random_range(0..40) as f64 / 1000.0,
            )
            .await?;
        }
        return Ok(None);
    }
    let answer = complete_here(connection, work, last).await?;
    let committed = answer == "done" || answer == "more";
    exec(connection, if committed { "COMMIT" } else { "ROLLBACK" }).await?;
    Ok(committed.then_some(answer == "more"))
}

async fn run_stream(
    connection: &mut PgConnection,
    random: &mut StdRng,
    mut rows: Vec<Work>,
) -> Outcome {
    while let Some(held) = rows.last().cloned() {
        let count = rows.len();
        let mut more = false;
        for (place, work) in rows.into_iter().enumerate() {
            match handle(connection, random, &work, place + 1 == count).await? {
                Some(answer) => more = answer,
                None => return Ok(()),
            }
        }
        if held.stream.is_none() || !more {
            return Ok(());
        }
        if random.random_bool(0.1) {
            return close(connection, &held).await;
        }
        rows = next(connection, &held, &["a", "b"]).await?;
    }
    Ok(())
}

async fn worker(mut connection: PgConnection, shared: Arc<Shared>, seed: u64) -> Outcome {
    let mut random = StdRng::seed_from_u64(seed);
    while !shared.drained.load(Ordering::SeqCst) {
        let request = Claim {
            limit: random.random_range(1..12),
            run: random.random_range(1..6),
            lease: if random.random_bool(0.3) { 0.04 } else { 0.3 },
            ..Claim::by(&[("a", "lane"), ("b", "lane")])
        };
        let mut works = claim(&mut connection, &request).await?;
        if works.is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            continue;
        }
        if random.random_bool(0.05) {
            continue; // As if the process had died.
        }
        works.sort_by_key(|work| (work.stream, work.sequence));
        let mut runs: Vec<Vec<Work>> = Vec::new();
        for work in works {
            match runs.last_mut() {
                Some(run) if work.stream.is_some() && run[0].stream == work.stream => {
                    run.push(work)
                }
                _ => runs.push(vec![work]),
            }
        }
        for run in runs {
            run_stream(&mut connection, &mut random, run).await?;
        }
    }
    Ok(())
}

async fn hander(
    mut connection: PgConnection,
    shared: Arc<Shared>,
    streams: Vec<Uuid>,
    seed: u64,
) -> Outcome {
    let mut random = StdRng::seed_from_u64(seed);
    while shared.stored.load(Ordering::SeqCst) < MESSAGES {
        let stream = streams[random.random_range(0..streams.len())];
        let offer = Offer {
            token: Uuid::now_v7(),
            room: &[("a", 3), ("b", 3)],
        };
        let batch = [
            Message::of(stream),
            Message::new(),
            Message {
                kind: "u",
                ..Message::of(stream)
            },
        ];
        let stored = store(&mut connection, &batch, Some(&offer)).await?;
        shared
            .stored
            .fetch_add(i64::try_from(stored.len())?, Ordering::SeqCst);
        let mut run = Vec::new();
        for row in stored.iter().filter(|row| row.leased) {
            let message = batch.iter().find(|one| one.id == row.message_id);
            let work = Work {
                id: row.message_id,
                handler: row.handler_name.clone().unwrap_or_default(),
                data: String::new(),
                lane: "lane".to_owned(),
                stream: message.and_then(|one| one.stream),
                sequence: row.sequence.unwrap_or_default(),
                attempts: 0,
                losses: 0,
                token: offer.token,
            };
            if work.stream.is_some() {
                run.push(work);
            } else {
                run_stream(&mut connection, &mut random, vec![work]).await?;
            }
        }
        run.sort_by_key(|work| work.sequence);
        run_stream(&mut connection, &mut random, run).await?;
    }
    Ok(())
}

/// Shortens long leases, as the reaping of dead peers does.
const REAP: &str = "UPDATE wh_inbox_streams g SET due_at = clock_timestamp() FROM (SELECT lane, stream_id FROM wh_inbox_streams WHERE due_at > clock_timestamp() + interval '1 second' FOR NO KEY UPDATE SKIP LOCKED) l WHERE g.lane = l.lane AND g.stream_id = l.stream_id; UPDATE wh_inbox w SET due_at = clock_timestamp() FROM (SELECT message_id, handler_name FROM wh_inbox WHERE due_at > clock_timestamp() + interval '1 second' FOR UPDATE SKIP LOCKED) l WHERE w.message_id = l.message_id AND w.handler_name = l.handler_name";

async fn reaper(mut connection: PgConnection, shared: Arc<Shared>) -> Outcome {
    while !shared.drained.load(Ordering::SeqCst) {
        exec(&mut connection, REAP).await?;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    Ok(())
}

async fn run(seed: u64) -> Outcome {
    let db = Db::new().await?;
    db.run(EFFECTS).await?;
    db.subscribe_to("a", "lane", "t").await?;
    db.subscribe_to("b", "lane", "u").await?;
    let shared = Arc::new(Shared {
        stored: AtomicI64::new(0),
        drained: AtomicBool::new(false),
    });
    // Each source has streams of its own: the order of stores that overlap is nobody's promise.
    let streams = || (0..STREAMS).map(|_| Uuid::now_v7()).collect::<Vec<_>>();
    let mut tasks = Vec::new();
    for n in 0..2 {
        let connection = db.connect().await?;
        let source = producer(connection, Arc::clone(&shared), streams(), seed * 100 + n);
        tasks.push(tokio::spawn(source));
        let connection = db.connect().await?;
        let source = hander(
            connection,
            Arc::clone(&shared),
            streams(),
            seed * 100 + 10 + n,
        );
        tasks.push(tokio::spawn(source));
    }
    for n in 0..4 {
        let connection = db.connect().await?;
        tasks.push(tokio::spawn(worker(
            connection,
            Arc::clone(&shared),
            seed * 100 + 20 + n,
        )));
    }
    tasks.push(tokio::spawn(reaper(
        db.connect().await?,
        Arc::clone(&shared),
    )));
    let drained = until("everything is drained", || async {
        shared.stored.load(Ordering::SeqCst) >= MESSAGES
            && db.value::<i64>("SELECT (SELECT count(*) FROM wh_inbox) + (SELECT count(*) FROM wh_inbox_streams)").await.is_ok_and(|left| left == 0)
    })
    .await;
    shared.drained.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await??;
    }
    if drained.is_err() {
        anyhow::bail!(
            "seed {seed}: not drained: {}",
            db.value::<String>(LEFT).await?
        );
    }
    let ids: i64 = db
        .value("SELECT count(*) FROM wh_message_deduplication")
        .await?;
    let effects: i64 = db.value("SELECT count(*) FROM effects").await?;
    let distinct: i64 = db
        .value("SELECT count(DISTINCT (message_id, handler)) FROM effects")
        .await?;
    anyhow::ensure!(
        effects == distinct,
        "seed {seed}: {} effects twice",
        effects - distinct
    );
    anyhow::ensure!(
        effects == ids,
        "seed {seed}: {ids} messages, {effects} effects"
    );
    let disorder: i64 = db.value("SELECT count(*) FROM (SELECT sequence < lag(sequence) OVER (PARTITION BY stream_id ORDER BY id) AS wrong FROM effects WHERE stream_id IS NOT NULL) e WHERE wrong").await?;
    anyhow::ensure!(
        disorder == 0,
        "seed {seed}: {disorder} effects out of order"
    );
    Ok(())
}

#[tokio::test]
async fn random_workers_keep_every_promise() -> Outcome {
    for seed in 1..=3 {
        run(seed).await?;
    }
    Ok(())
}
