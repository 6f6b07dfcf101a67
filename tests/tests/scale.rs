//! What storing, claiming and completing cost when much is waiting, blocked or deleted, against the
//! same on an empty system (P11).
//!
//! It measures time and fills tables for minutes, so it runs only when it is asked for:
//! `cargo test --release -p whizbang-tests --test scale -- --ignored --nocapture`.
//! What does not depend on the machine, the rows that each call reads, is tested in `sql::plans`.

use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, PgPool, Postgres, Transaction};
use uuid::Uuid;
use whizbang::{
    Envelope,
    store::{ClaimRequest, Instance, Room, Store, Subscription},
};
use whizbang_postgres::{PgStore, embedded::Server};
use whizbang_tests::{Ping, Stepped};

/// Messages stored, claimed and completed in one cycle.
const BATCH: usize = 100;
/// Cycles of a measurement; the middle one counts.
const CYCLES: usize = 41;
/// The most that a crowded system may cost, times an empty one.
const MOST: f64 = 3.0;

/// Everything below is for these two handlers.
const PLAIN: &str = "pinged";
const ORDERED: &str = "stepped";

const STREAMS: &str = "
INSERT INTO wh_inbox (message_id, handler_name, message_type, event_data, metadata, lane, stream_id, due_at)
  SELECT gen_random_uuid(), 'stepped', 'tests.stepped', '{\"stream\":\"s\",\"number\":1}', '{}', 'stepped', md5((n % 100000)::text)::uuid, NULL
  FROM generate_series(1, 1000000) n;
INSERT INTO wh_inbox_streams (lane, stream_id, due_at)
  SELECT 'stepped', md5(n::text)::uuid, clock_timestamp() FROM generate_series(0, 99999) n;
ANALYZE";

const WAITING: &str = "
INSERT INTO wh_inbox (message_id, handler_name, message_type, event_data, metadata, lane, due_at)
  SELECT gen_random_uuid(), 'pinged', 'tests.ping', '{\"number\":1}', '{}', 'pinged', clock_timestamp()
  FROM generate_series(1, 1000000);
ANALYZE";

const BLOCKED: &str = "
INSERT INTO wh_inbox (message_id, handler_name, message_type, event_data, metadata, lane, stream_id, due_at)
  SELECT gen_random_uuid(), 'stepped', 'tests.stepped', '{\"stream\":\"s\",\"number\":1}', '{}', 'stepped', md5('blocked')::uuid, NULL
  FROM generate_series(1, 1000000) n;
INSERT INTO wh_inbox_streams (lane, stream_id, due_at) VALUES ('stepped', md5('blocked')::uuid, clock_timestamp() + interval '1 day');
ANALYZE";

const KNOWN: &str = "
INSERT INTO wh_message_deduplication (message_id, first_seen_at)
  SELECT gen_random_uuid(), clock_timestamp() - interval '1 day' FROM generate_series(1, 10000000);
ANALYZE";

const DEAD: &str = "
INSERT INTO wh_inbox (message_id, handler_name, message_type, event_data, metadata, lane, due_at)
  SELECT gen_random_uuid(), 'pinged', 'tests.ping', '{\"number\":1}', '{}', 'pinged', clock_timestamp()
  FROM generate_series(1, 300000);
DELETE FROM wh_inbox WHERE handler_name = 'pinged';
ANALYZE";

/// A database with our schema, and a service that listens to both messages.
struct Bench {
    server: Server,
    databases: u32,
}

struct Place {
    pool: PgPool,
    store: PgStore,
    instance: Instance,
}

/// Middle times of one measurement.
#[derive(Debug, Clone, Copy)]
struct Times {
    store: Duration,
    claim: Duration,
    complete: Duration,
    /// The slowest claim of all.
    slowest: Duration,
}

impl Bench {
    fn start() -> Self {
        let server = Server::builder()
            .setting("shared_buffers", "512MB")
            .setting("max_wal_size", "4GB")
            .start()
            .expect("a server");
        Self {
            server,
            databases: 0,
        }
    }

    async fn place(&mut self, fill: &'static str) -> Place {
        self.databases += 1;
        let name = format!("scale{}", self.databases);
        self.server
            .create_database(&name)
            .await
            .expect("a database");
        let pool = PgPool::connect_with(self.server.connect_options(&name))
            .await
            .expect("a pool");
        whizbang_postgres::migrate(&pool).await.expect("a schema");
        let store = PgStore::new(pool.clone());
        let instance = Instance {
            id: Uuid::now_v7(),
            service: "scale".to_owned(),
            host: "here".to_owned(),
        };
        let listens = |handler: &str, message_type: &str| Subscription {
            handler: handler.to_owned(),
            message_type: message_type.to_owned(),
            lane: handler.to_owned(),
        };
        let subscriptions = [
            listens(PLAIN, "tests.ping"),
            listens(ORDERED, "tests.stepped"),
        ];
        store
            .register(&instance, &subscriptions)
            .await
            .expect("registered");
        sqlx::raw_sql(fill).execute(&pool).await.expect("filled");
        Place {
            pool,
            store,
            instance,
        }
    }
}

impl Place {
    /// Half of them in streams of their own.
    fn fresh(round: usize) -> Vec<Envelope> {
        (0..BATCH)
            .map(|place| {
                let number = i64::try_from(round * BATCH + place).expect("small");
                let envelope = match place % 2 {
                    0 => Envelope::new(&Ping { number }),
                    _ => Envelope::new(&Stepped {
                        stream: Uuid::now_v7().to_string(),
                        number,
                    }),
                };
                envelope.expect("test messages encode")
            })
            .collect()
    }

    fn request(&self, rescan: bool) -> ClaimRequest {
        let room = [PLAIN, ORDERED].map(|handler| Room {
            handler: handler.to_owned(),
            lane: handler.to_owned(),
            limit: BATCH,
        });
        ClaimRequest {
            instance: self.instance.id,
            token: Uuid::now_v7(),
            lease: Duration::from_secs(600),
            room: room.to_vec(),
            limit: BATCH,
            run: 1,
            rescan,
        }
    }

    /// Stores, claims and completes a batch; the three times.
    async fn cycle(&self, round: usize, rescan: bool) -> [Duration; 3] {
        let fresh = Self::fresh(round);
        let began = Instant::now();
        let stored = self.store.store_inbox(&fresh, None).await.expect("store");
        assert_eq!(stored.stored, BATCH as u64);
        let store = began.elapsed();
        let request = self.request(rescan);
        let began = Instant::now();
        let work = self.store.claim(&request).await.expect("claim");
        let claim = began.elapsed();
        assert_eq!(work.len(), BATCH, "a full claim");
        let leases: Vec<_> = work.into_iter().map(|work| work.lease).collect();
        let began = Instant::now();
        let done = self.store.complete_batch(&leases).await.expect("complete");
        assert!(done.into_iter().all(|done| done));
        [store, claim, began.elapsed()]
    }

    async fn measure(&self) -> Times {
        let mut all = [Vec::new(), Vec::new(), Vec::new()];
        for round in 0..CYCLES {
            // As the runtime does: from the very start now and then.
            let times = self.cycle(round, round % 20 == 19).await;
            for (list, time) in all.iter_mut().zip(times) {
                list.push(time);
            }
        }
        let [store, claim, complete] = all.map(|mut list| {
            list.sort_unstable();
            (list[CYCLES / 2], list[CYCLES - 1])
        });
        Times {
            store: store.0,
            claim: claim.0,
            complete: complete.0,
            slowest: claim.1,
        }
    }

    /// A transaction elsewhere that keeps deleted rows from vacuum.
    async fn hold_back(&self) -> Transaction<'static, Postgres> {
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ";
        let mut held = self.pool.begin_with(begin).await.expect("begin");
        sqlx::query("SELECT count(*) FROM wh_inbox")
            .execute(&mut *held)
            .await
            .expect("a snapshot");
        held
    }

    async fn fill(&self, sql: &'static str) {
        let filled = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&self.pool).await;
        filled.expect("filled");
    }
}

/// Prints the factors and says which are too high.
fn judge(what: &str, empty: Times, crowded: Times) -> Vec<String> {
    let parts = [
        ("store", empty.store, crowded.store),
        ("claim", empty.claim, crowded.claim),
        ("complete", empty.complete, crowded.complete),
    ];
    let mut line = format!("{what:<46}");
    let mut faults = Vec::new();
    for (part, empty, crowded) in parts {
        let factor = crowded.as_secs_f64() / empty.as_secs_f64();
        line.push_str(&format!(
            "  {part} {:.1} ms × {factor:.2}",
            crowded.as_secs_f64() * 1e3
        ));
        if factor > MOST {
            faults.push(format!("{what}: {part} costs {factor:.2} times as much"));
        }
    }
    let slowest = crowded.slowest.as_secs_f64() * 1e3;
    eprintln!("{line}  slowest claim {slowest:.1} ms");
    faults
}

#[tokio::test]
#[ignore = "measures time; takes minutes"]
async fn a_crowded_system_costs_no_more_than_three_times_an_empty_one() {
    let mut bench = Bench::start();
    let place = bench.place("").await;
    place.measure().await;
    let empty = place.measure().await;
    judge("empty", empty, empty);
    let crowds = [
        ("1 000 000 waiting without a stream", WAITING),
        ("1 000 000 waiting in 100 000 streams", STREAMS),
        ("one blocked stream of 1 000 000", BLOCKED),
        ("3 000 000 known ids", KNOWN),
    ];
    let mut faults = Vec::new();
    for (what, fill) in crowds {
        let place = bench.place(fill).await;
        place.measure().await;
        faults.extend(judge(what, empty, place.measure().await));
        place.pool.close().await;
    }
    let place = bench.place("").await;
    let held = place.hold_back().await;
    place.fill(DEAD).await;
    // Until the low watermark has passed them, which takes up to ten seconds of work.
    let began = Instant::now();
    let mut round = 0;
    while began.elapsed() < Duration::from_secs(12) {
        place.cycle(round, false).await;
        round += 1;
    }
    let dead = place.measure().await;
    faults.extend(judge(
        "300 000 dead rows held back from vacuum",
        empty,
        dead,
    ));
    held.rollback().await.expect("rollback");
    assert!(faults.is_empty(), "{faults:#?}");
}
