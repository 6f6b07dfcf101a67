//! What a command costs beyond the transaction it is about, in round trips to the database.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use uuid::Uuid;
use whizbang::{BoxError, Command, idempotent_command};
use whizbang_postgres::{HandlerContext, PgStore, Whizbang};
use whizbang_tests::{Proxy, World};

/// Transactions of each kind.
const TIMES: u64 = 20;

/// Nothing happens by itself within this time.
const NEVER: Duration = Duration::from_secs(3600);

#[derive(Debug, Clone, Serialize, Deserialize, Command)]
#[message(name = "tests.deposit")]
struct Deposit {
    id: Uuid,
    cents: i64,
}

const INSERT: &str = "INSERT INTO payments (cents) VALUES ($1)";

#[idempotent_command(key = id)]
async fn deposit(command: Deposit, cx: &mut HandlerContext<'_>) -> Result<(), BoxError> {
    let insert = sqlx::query(INSERT).bind(command.cents);
    insert.execute(cx.conn()).await?;
    Ok(())
}

/// The round trips of `TIMES` calls, after one that prepares the statements.
async fn round_trips<F: Future<Output = ()>>(
    proxy: &Proxy,
    pool: &PgPool,
    call: impl Fn() -> F,
) -> u64 {
    call().await;
    let before = settled(proxy, pool).await;
    for _ in 0..TIMES {
        call().await;
    }
    settled(proxy, pool).await - before
}

/// The pool has one connection: who has it knows that nothing is under way on it.
async fn settled(proxy: &Proxy, pool: &PgPool) -> u64 {
    let _connection = pool.acquire().await.expect("the connection");
    proxy.round_trips()
}

#[tokio::test]
async fn a_command_costs_two_statements_and_a_repeat_one_read() {
    let world = World::new().await;
    let proxy = Proxy::start(&world.connect_options()).await;
    let pool = proxy.pool(1);
    let app = Whizbang::on(PgStore::new(pool.clone()))
        .service("tests")
        .without_discovery()
        .register::<deposit>()
        .configure(|config| {
            config.idle_poll = NEVER;
            config.heartbeat = NEVER;
            config.dead_after = NEVER * 10;
            config.lease = NEVER * 10;
            config.maintenance = Duration::ZERO;
        })
        .start()
        .await
        .expect("start");
    let dispatcher = app.dispatcher();
    let command = || Deposit {
        id: Uuid::now_v7(),
        cents: 1,
    };
    let bare = round_trips(&proxy, &pool, async || {
        let mut tx = pool.begin().await.expect("begin");
        let insert = sqlx::query(INSERT).bind(1_i64);
        insert.execute(&mut *tx).await.expect("insert");
        tx.commit().await.expect("commit");
    })
    .await;
    let executed = round_trips(&proxy, &pool, async || {
        dispatcher.execute(command()).await.expect("executed");
    })
    .await;
    assert_eq!(executed - bare, 2 * TIMES, "beyond {bare} of the bare one");

    let read = round_trips(&proxy, &pool, async || {
        let mut tx = pool.begin().await.expect("begin");
        let read = sqlx::query("SELECT key FROM wh_command_results WHERE scope = $1 AND key = $1");
        read.bind("x").fetch_all(&mut *tx).await.expect("read");
        tx.rollback().await.expect("rollback");
    })
    .await;
    let known = command();
    let repeated = round_trips(&proxy, &pool, async || {
        dispatcher.execute(known.clone()).await.expect("repeated");
    })
    .await;
    assert_eq!(repeated, read, "a transaction with one read");

    // In the caller's transaction: the key, the reply, and a savepoint around them.
    let inside = round_trips(&proxy, &pool, async || {
        let mut tx = pool.begin().await.expect("begin");
        let done = dispatcher.execute_in(&mut tx, command()).await;
        done.expect("executed");
        tx.commit().await.expect("commit");
    })
    .await;
    assert_eq!(inside - bare, 4 * TIMES, "beyond {bare} of the bare one");
    app.shutdown().await.expect("shutdown");
}
