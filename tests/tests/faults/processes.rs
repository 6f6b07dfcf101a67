//! F017, F019, F041, F053, F055, F058, F074, A, B, F and H: processes that are killed or stopped.
//!
//! The test program starts itself again as a worker. A worker ends when it is killed, or when the
//! test that started it ends.

use std::{
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use sqlx::postgres::PgConnectOptions;
use uuid::Uuid;
use whizbang::store::Store;
use whizbang_postgres::{Builder, Dispatcher, PgStore};
use whizbang_tests::{Ping, Step, Stepped, World, note_stepped, scripted};

use super::{
    support::{envelope, no_open_transactions, patiently, store_after},
    table_transport::{TABLE, TableTransport},
};

/// Where the worker's database is; set for workers only.
const DATABASE: &str = "WHIZBANG_FAULTS_DATABASE";
/// What its handlers do.
const PLAN: &str = "WHIZBANG_FAULTS_PLAN";

const LEASE: Duration = Duration::from_millis(800);
const STREAMS: i64 = 4;

/// What all instances of these tests are like.
fn service(world: &World) -> Builder {
    world
        .service()
        .transport(TableTransport(world.pool.clone()))
        .register::<scripted>()
        .register::<note_stepped>()
        .configure(|config| {
            config.lease = LEASE;
            config.heartbeat = Duration::from_millis(200);
            config.dead_after = Duration::from_secs(2);
            config.relay_lease = Duration::from_millis(500);
        })
}

/// Not a test: what a worker runs. In the test program itself it has nothing to do.
#[test]
fn worker_process() {
    let Ok(url) = std::env::var(DATABASE) else {
        return;
    };
    let plan = std::env::var(PLAN).expect("a plan");
    // The pipe ends with the test program, however that ends.
    std::thread::spawn(|| {
        let read = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(i32::from(read.is_err()));
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(work(&url, &plan));
}

async fn work(url: &str, plan: &str) {
    let options: PgConnectOptions = url.parse().expect("a URL");
    let world = World::joined(options);
    let mut service = service(&world);
    match plan {
        "quick" => {
            let attempts = |config: &mut whizbang::RuntimeConfig| config.max_attempts = 1_000;
            service = service.configure(attempts);
        }
        "slow" => {
            for number in 0..100 {
                let pause = Step::Pause(Duration::from_millis(600));
                world.script.steps(number, [pause]);
            }
        }
        "endless" => {
            for number in 0..100 {
                world.script.steps(number, [Step::Hang]);
            }
        }
        "deadly" => {
            world.script.steps(13, [Step::Abort]);
            for number in (0..100).filter(|number| *number != 13) {
                world
                    .script
                    .steps(number, [Step::Pause(Duration::from_millis(20))]);
            }
        }
        other => panic!("no such plan: {other}"),
    }
    let app = service.start().await.expect("start");
    std::future::pending::<()>().await;
    drop(app);
}

/// A worker; killed at the latest when the test is over.
struct Worker(Child);

impl Worker {
    fn start(world: &World, plan: &str) -> Self {
        let program = std::env::current_exe().expect("this program");
        let child = Command::new(program)
            .args([
                "--exact",
                "faults::processes::worker_process",
                "--nocapture",
            ])
            .env(DATABASE, world.database().url())
            .env(PLAN, plan)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a worker");
        Self(child)
    }

    fn kill(mut self) {
        self.0.kill().expect("kill");
        self.0.wait().expect("wait");
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill")
            .args([signal, &self.0.id().to_string()])
            .status()
            .expect("the program kill");
        assert!(sent.success());
    }

    fn has_ended(&mut self) -> bool {
        self.0.try_wait().expect("wait").is_some()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended by itself, which is no failure of the test.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A world with a broker, and something that publishes to it without taking part in the work.
async fn with_broker() -> (World, Dispatcher) {
    let world = World::new().await;
    sqlx::raw_sql(TABLE)
        .execute(&world.pool)
        .await
        .expect("a broker");
    let app = service(&world).start().await.expect("start");
    app.shutdown().await.expect("shutdown");
    (world, app.dispatcher())
}

async fn store_pings(world: &World, numbers: std::ops::Range<i64>) {
    let store = PgStore::new(world.pool.clone());
    let pings: Vec<_> = numbers
        .map(|number| envelope(Uuid::now_v7(), &Ping { number }))
        .collect();
    store.store_inbox(&pings, None).await.expect("store");
}

#[tokio::test]
async fn f017_f019_f041_a_b_h_workers_killed_at_random_lose_and_double_nothing() {
    const ROUNDS: i64 = 10;
    const COUNT: i64 = 30;
    let seed = 20_261_203;
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let (world, dispatcher) = with_broker().await;
    for round in 0..ROUNDS {
        let numbers = round * COUNT..(round + 1) * COUNT;
        store_pings(&world, numbers.clone()).await;
        for number in numbers {
            let stream = (number % STREAMS).to_string();
            let mut tx = world.pool.begin().await.expect("begin");
            let step = Stepped { stream, number };
            dispatcher.publish(&mut tx, &step).await.expect("publish");
            tx.commit().await.expect("commit");
        }
        let done = world.count("SELECT count(*) FROM effects").await;
        let workers = [
            Worker::start(&world, "quick"),
            Worker::start(&world, "quick"),
        ];
        patiently("the workers are at work", || async {
            world.count("SELECT count(*) FROM effects").await > done
        })
        .await;
        for worker in workers {
            let pause = random.random_range(0..60);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            worker.kill();
        }
    }
    let last = Worker::start(&world, "quick");
    patiently("everything is done", || world.is_quiet()).await;
    last.kill();
    for number in 0..ROUNDS * COUNT {
        assert_eq!(world.effects("scripted", number).await, 1, "{number}");
        assert_eq!(world.effects("note_stepped", number).await, 1, "{number}");
    }
    assert_eq!(world.count("SELECT count(*) FROM wh_dead_letters").await, 0);
    for stream in 0..STREAMS {
        let expected: Vec<_> = (0..ROUNDS * COUNT)
            .filter(|number| number % STREAMS == stream)
            .collect();
        let here = "SELECT number FROM effects WHERE stream = $1 ORDER BY id";
        let there = "SELECT (min(payload)::json->>'number')::bigint FROM broker WHERE message_type = 'tests.stepped' AND payload::json->>'stream' = $1 GROUP BY message_id ORDER BY min(id)";
        for sql in [here, there] {
            let found: Vec<i64> = sqlx::query_scalar(sql)
                .bind(stream.to_string())
                .fetch_all(&world.pool)
                .await
                .expect("a stream");
            assert_eq!(found, expected, "stream {stream}: {sql}");
        }
    }
    // Each handler's commit left one message, however often the relay had to send it.
    let published = world
        .count("SELECT count(DISTINCT message_id) FROM broker WHERE message_type = 'tests.noted'")
        .await;
    assert_eq!(published, ROUNDS * COUNT);
    let repeats = world
        .count("SELECT count(*) - count(DISTINCT message_id) FROM broker")
        .await;
    println!("{repeats} messages were relayed again after a kill");
}

#[tokio::test]
async fn f055_what_a_killed_worker_held_is_taken_over() {
    const COUNT: i64 = 50;
    let (world, _) = with_broker().await;
    store_pings(&world, 0..COUNT).await;
    let worker = Worker::start(&world, "endless");
    patiently("all are in flight", || async {
        world
            .count("SELECT count(*) FROM wh_inbox WHERE lease_token IS NOT NULL")
            .await
            == COUNT
    })
    .await;
    worker.kill();
    let began = Instant::now();
    let app = service(&world).start().await.expect("start");
    patiently("all were taken over", || world.is_quiet()).await;
    println!("taken over in {:?}", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(60));
    assert_eq!(world.count("SELECT count(*) FROM effects").await, COUNT);
    assert_eq!(world.count("SELECT count(*) FROM wh_dead_letters").await, 0);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f058_f_a_worker_stopped_past_its_lease_commits_nothing_when_it_wakes() {
    let (world, _) = with_broker().await;
    store_pings(&world, 1..2).await;
    let worker = Worker::start(&world, "slow");
    patiently("its transaction is open", || async {
        world
            .count("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction' AND query LIKE '%store_outbox_messages%'")
            .await
            > 0
    })
    .await;
    worker.signal("-STOP");
    let app = service(&world).start().await.expect("start");
    patiently("the other one is done", || async {
        world.effects("scripted", 1).await == 1
    })
    .await;
    worker.signal("-CONT");
    // It goes on with its handler, asks for the completion, and is refused.
    no_open_transactions(&world).await;
    patiently("nothing is left", || world.is_quiet()).await;
    assert_eq!(world.script.calls(1), 1);
    assert_eq!(world.effects("scripted", 1).await, 1);
    let published = world
        .count("SELECT count(DISTINCT message_id) FROM broker")
        .await;
    assert_eq!(published, 1, "nothing of the refused run has left");
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f053_one_late_heartbeat_ejects_nobody() {
    let (world, _) = with_broker().await;
    store_pings(&world, 1..2).await;
    let worker = Worker::start(&world, "slow");
    patiently("it is at work", || async {
        world
            .count("SELECT count(*) FROM wh_inbox WHERE lease_token IS NOT NULL")
            .await
            == 1
    })
    .await;
    let app = service(&world).start().await.expect("start");
    worker.signal("-STOP");
    // A heartbeat and a renewal are missed, but neither the lease nor the patience has ended.
    tokio::time::sleep(Duration::from_millis(300)).await;
    worker.signal("-CONT");
    patiently("it is done", || world.is_quiet()).await;
    assert_eq!(world.script.calls(1), 0, "nobody else ran it");
    assert_eq!(world.effects("scripted", 1).await, 1);
    let instances = world
        .count("SELECT count(*) FROM wh_service_instances")
        .await;
    assert_eq!(instances, 2);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f074_a_message_that_kills_its_process_ends_and_its_neighbours_do_not() {
    const COUNT: i64 = 40;
    let world = World::new().await;
    sqlx::raw_sql(TABLE)
        .execute(&world.pool)
        .await
        .expect("a broker");
    store_after(&world, service(&world)).await;
    store_pings(&world, 0..COUNT).await;
    let mut deaths = 0;
    let mut worker = Worker::start(&world, "deadly");
    let began = Instant::now();
    while world.count("SELECT count(*) FROM wh_inbox").await > 0 {
        assert!(began.elapsed() < Duration::from_secs(90), "it never ends");
        if worker.has_ended() {
            deaths += 1;
            worker = Worker::start(&world, "deadly");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("{deaths} processes died");
    for number in (0..COUNT).filter(|number| *number != 13) {
        assert_eq!(world.effects("scripted", number).await, 1, "{number}");
    }
    assert_eq!(world.effects("scripted", 13).await, 0);
    let letters: Vec<(String, String)> =
        sqlx::query_as("SELECT reason, event_data::text FROM wh_dead_letters")
            .fetch_all(&world.pool)
            .await
            .expect("letters");
    assert_eq!(
        letters,
        [("crashed".to_owned(), r#"{"number":13}"#.to_owned())]
    );
    assert!(deaths >= 3, "a loss among others is no attempt");
}
