//! P7: a command as a part of a transaction of the caller's, and what ends transactions badly.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::{Postgres, Transaction};
use uuid::Uuid;
use whizbang::{
    BoxError, Command, Envelope, ExecuteError, Metadata, State, StoreErrorKind, idempotent_command,
};
use whizbang_postgres::{App, HandlerContext};
use whizbang_tests::{Pay, PayReceipt, Script, Step, World, pay, wait_until};

async fn start(world: &World) -> App {
    world
        .service()
        .register::<pay>()
        .register::<settle>()
        .start()
        .await
        .expect("start")
}

fn payment(cents: i64) -> Pay {
    Pay {
        payment_id: Uuid::now_v7(),
        cents,
    }
}

async fn payments(world: &World) -> i64 {
    world.count("SELECT count(*) FROM payments").await
}

async fn begin(world: &World, level: &str) -> Transaction<'static, Postgres> {
    let statement = format!("BEGIN ISOLATION LEVEL {level}");
    let statement = sqlx::AssertSqlSafe(statement);
    let mut tx = world.pool.begin_with(statement).await.expect("begin");
    // The first statement takes the snapshot.
    let query = sqlx::query("SELECT count(*) FROM payments");
    query.execute(&mut *tx).await.expect("a snapshot");
    tx
}

#[tokio::test]
async fn a_command_commits_and_rolls_back_with_its_caller() {
    let world = World::new().await;
    let app = start(&world).await;
    let dispatcher = app.dispatcher();
    let command = payment(5);
    let mut tx = world.pool.begin().await.expect("begin");
    let lost = dispatcher.execute_in(&mut tx, command.clone()).await;
    let lost = lost.expect("executed");
    let again = dispatcher.execute_in(&mut tx, command.clone()).await;
    assert_eq!(again.expect("a repeat in the same transaction"), lost);
    tx.rollback().await.expect("rollback");
    assert_eq!(payments(&world).await, 0);

    let mut tx = world.pool.begin().await.expect("begin");
    let receipt = dispatcher.execute_in(&mut tx, command.clone()).await;
    let receipt = receipt.expect("executed");
    assert_ne!(receipt, lost);
    tx.commit().await.expect("commit");
    assert_eq!(dispatcher.execute(command).await.expect("repeat"), receipt);
    assert_eq!(payments(&world).await, 1);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn a_failed_command_leaves_the_callers_transaction_as_it_was() {
    let world = World::new().await;
    let steps = [Step::Fail, Step::Panic, Step::Swallow, Step::Succeed];
    world.script.steps(6, steps);
    let app = start(&world).await;
    let dispatcher = app.dispatcher();
    let command = payment(6);
    let mut tx = world.pool.begin().await.expect("begin");
    let insert = sqlx::query("INSERT INTO payments (cents) VALUES (1)");
    insert.execute(&mut *tx).await.expect("the caller's own");
    let failed = dispatcher.execute_in(&mut tx, command.clone()).await;
    assert!(
        matches!(failed, Err(ExecuteError::Handler(_))),
        "{failed:?}"
    );
    let panicked = dispatcher.execute_in(&mut tx, command.clone()).await;
    assert!(
        matches!(panicked, Err(ExecuteError::Panicked(_))),
        "{panicked:?}"
    );
    let swallowed = dispatcher.execute_in(&mut tx, command.clone()).await;
    let aborted = |error: &ExecuteError| matches!(error, ExecuteError::Store(error) if error.kind == StoreErrorKind::Aborted);
    assert!(swallowed.as_ref().is_err_and(aborted), "{swallowed:?}");
    dispatcher
        .execute_in(&mut tx, command)
        .await
        .expect("the key is free, the transaction goes on");
    tx.commit().await.expect("commit");
    assert_eq!(payments(&world).await, 2);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn repeats_wait_for_the_end_of_the_callers_transaction() {
    let world = World::new().await;
    let (one, two) = (start(&world).await, start(&world).await);
    for commits in [true, false] {
        let command = payment(7);
        let mut tx = world.pool.begin().await.expect("begin");
        let first = one.dispatcher().execute_in(&mut tx, command.clone()).await;
        let first = first.expect("executed");
        let mut others = Vec::new();
        for app in [&one, &two] {
            let dispatcher = app.dispatcher();
            let busy = dispatcher
                .execute(command.clone())
                .wait(Duration::ZERO)
                .await;
            assert!(
                matches!(busy, Err(ExecuteError::InProgress { .. })),
                "{busy:?}"
            );
            let command = command.clone();
            others.push(tokio::spawn(
                async move { dispatcher.execute(command).await },
            ));
        }
        // A transaction waits as well.
        let mut waiting = world.pool.begin().await.expect("begin");
        let short = Duration::from_millis(30);
        let busy = two
            .dispatcher()
            .execute_in(&mut waiting, command)
            .wait(short)
            .await;
        assert!(
            matches!(busy, Err(ExecuteError::InProgress { .. })),
            "{busy:?}"
        );
        waiting.rollback().await.expect("rollback");
        match commits {
            true => tx.commit().await.expect("commit"),
            false => tx.rollback().await.expect("rollback"),
        }
        let mut receipts = Vec::new();
        for other in others {
            receipts.push(other.await.expect("no panic").expect("executed"));
        }
        assert_eq!(receipts[0], receipts[1], "one execution");
        assert_eq!(receipts[0] == first, commits);
    }
    assert_eq!(payments(&world).await, 2);
    one.shutdown().await.expect("shutdown");
    two.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn above_read_committed_the_whole_transaction_is_to_be_retried() {
    let world = World::new().await;
    let app = start(&world).await;
    let dispatcher = app.dispatcher();
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let command = payment(8);
        // While the first execution runs, and after it has committed behind the snapshot.
        let mut first = world.pool.begin().await.expect("begin");
        let receipt = dispatcher.execute_in(&mut first, command.clone()).await;
        let receipt = receipt.expect("executed");
        let mut during = begin(&world, level).await;
        let retry = dispatcher.execute_in(&mut during, command.clone()).await;
        assert!(
            matches!(retry, Err(ExecuteError::RetryTransaction(_))),
            "{retry:?}"
        );
        during.rollback().await.expect("rollback");
        let mut behind = begin(&world, level).await;
        first.commit().await.expect("commit");
        let retry = dispatcher.execute_in(&mut behind, command.clone()).await;
        assert!(
            matches!(retry, Err(ExecuteError::RetryTransaction(_))),
            "{retry:?}"
        );
        behind.rollback().await.expect("rollback");

        let mut retried = begin(&world, level).await;
        let same = dispatcher.execute_in(&mut retried, command.clone()).await;
        assert_eq!(same.expect("seen now"), receipt);
        let fresh = dispatcher.execute_in(&mut retried, payment(8)).await;
        assert_ne!(fresh.expect("another key"), receipt);
        retried.commit().await.expect("commit");
    }
    assert_eq!(payments(&world).await, 4);
    app.shutdown().await.expect("shutdown");
}

/// Pays in two parts, both commands of their own.
#[derive(Debug, Clone, Serialize, Deserialize, Command)]
#[message(name = "tests.settle", reply = Vec<PayReceipt>)]
struct Settle {
    settlement: String,
    parts: Vec<Pay>,
    fails: bool,
}

#[idempotent_command(key = settlement)]
async fn settle(
    command: Settle,
    cx: &mut HandlerContext<'_>,
    State(_script): State<Script>,
) -> Result<Vec<PayReceipt>, BoxError> {
    let mut receipts = Vec::new();
    for part in command.parts {
        receipts.push(cx.execute(part).await?);
    }
    match command.fails {
        true => Err("not settled".into()),
        false => Ok(receipts),
    }
}

#[tokio::test]
async fn a_handler_executes_other_commands_in_its_own_transaction() {
    let world = World::new().await;
    let app = start(&world).await;
    let paid = payment(1);
    let before = app.dispatcher().execute(paid.clone()).await.expect("paid");
    let mut command = Settle {
        settlement: "s-1".to_owned(),
        parts: vec![paid, payment(2)],
        fails: true,
    };
    let failed = app.dispatcher().execute(command.clone()).await;
    assert!(
        matches!(failed, Err(ExecuteError::Handler(_))),
        "{failed:?}"
    );
    assert_eq!(payments(&world).await, 1, "its part is gone with it");
    command.fails = false;
    let receipts = app
        .dispatcher()
        .execute(command.clone())
        .await
        .expect("settled");
    assert_eq!(receipts[0], before, "paid before");
    assert_eq!(payments(&world).await, 2);
    world.feed(&command);
    wait_until("it arrived", || async { app.counts().completed == 1 }).await;
    let part = command.parts[1].clone();
    let repeat = app.dispatcher().execute(part).await.expect("paid");
    assert_eq!(repeat, receipts[1]);
    assert_eq!(payments(&world).await, 2);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn a_handler_that_ended_a_transaction_is_found_out_and_never_runs_again() {
    let world = World::new().await;
    world.script.steps(9, [Step::Commit]);
    world.script.steps(10, [Step::Commit]);
    let app = start(&world).await;
    let dispatcher = app.dispatcher();
    let (alone, inside) = (payment(9), payment(10));
    let ended = dispatcher.execute(alone.clone()).await;
    assert!(matches!(ended, Err(ExecuteError::Unfenced)), "{ended:?}");
    let mut tx = world.pool.begin().await.expect("begin");
    let ended = dispatcher.execute_in(&mut tx, inside.clone()).await;
    assert!(matches!(ended, Err(ExecuteError::Unfenced)), "{ended:?}");
    drop(tx);
    for command in [alone, inside] {
        let again = dispatcher.execute(command.clone()).await;
        assert!(
            matches!(again, Err(ExecuteError::Unfinished { .. })),
            "{again:?}"
        );
        world.feed(&command);
    }
    world.dead_letters(2).await;
    let unfinished = "SELECT count(*) FROM wh_dead_letters WHERE reason = 'unfinished'";
    assert_eq!(world.count(unfinished).await, 2);
    assert_eq!(payments(&world).await, 2, "what was committed stays, once");
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn a_command_is_a_function_that_a_unit_test_can_call() {
    let world = World::new().await;
    let app = start(&world).await;
    let dispatcher = app.dispatcher();
    let command = payment(11);
    let envelope = Envelope::new(&command).expect("encode");
    let metadata = Metadata::of(&envelope, "pay");
    let tx = world.pool.begin().await.expect("begin");
    let mut cx = HandlerContext::new(tx, &dispatcher, &metadata);
    pay(command, &mut cx, State(world.script.clone()))
        .await
        .expect("paid");
    cx.into_transaction().commit().await.expect("commit");
    assert_eq!(payments(&world).await, 1);
    app.shutdown().await.expect("shutdown");
}
