//! Keys of idempotent commands: one execution each.

use futures::future::join_all;
use uuid::Uuid;

use super::{
    Harness, Verdict, Violation,
    bench::{Bench, DAY, options},
    must, must_eq, topic,
};
use crate::{
    AsCommandKey,
    store::{CommandAnswer, CommandRun, CommandState, Isolation, Store, TransactionOptions},
};

topic! {
    P7: the_first_runs_and_a_repeat_gets_its_reply,
    P7: another_payload_under_the_same_key_is_refused,
    P7: keys_of_other_scopes_are_other_keys,
    P7: a_failed_execution_leaves_the_key_free,
    P7: a_key_at_work_is_busy,
    P7: of_many_at_once_one_runs,
    P7: an_old_snapshot_does_not_run_it_again,
    P7: a_key_at_work_behind_a_snapshot_asks_for_another_transaction,
    P7: a_repeat_holds_nothing,
    P7: a_failed_part_leaves_the_key_free,
    P7: an_error_may_be_the_answer,
    P7: a_handler_that_ended_its_transaction_records_nothing_and_never_runs_again,
    P7: a_command_inside_another_speaks_for_itself_only,
    P7: a_unique_violation_names_its_constraint,
    P7: a_reply_may_be_nothing,
    P11: replies_are_forgotten_after_their_time,
    P7: hostile_keys_are_kept_apart,
}

fn run(scope: &str, key: &str, payload: u8) -> Result<CommandRun, Violation> {
    Ok(CommandRun {
        scope: scope.to_owned(),
        key: key.command_key()?,
        fingerprint: [payload; 32],
        version: "1.2.3".to_owned(),
    })
}

fn reply(text: Option<&str>) -> CommandAnswer {
    CommandAnswer::Reply(text.map(str::to_owned))
}

fn done(text: Option<&str>) -> CommandState {
    CommandState::Done(reply(text))
}

/// Begins and, if it is fresh, finishes and commits.
async fn execute<H: Harness>(
    bench: &Bench<'_, H>,
    run: &CommandRun,
    text: Option<&str>,
) -> Result<CommandState, Violation> {
    execute_to(bench, run, reply(text)).await
}

async fn execute_to<H: Harness>(
    bench: &Bench<'_, H>,
    run: &CommandRun,
    answer: CommandAnswer,
) -> Result<CommandState, Violation> {
    let mut session = bench.store.open().await?;
    let mut transaction = bench
        .store
        .begin(&mut session, &options(Uuid::now_v7()))
        .await?;
    let connection = H::Store::connection(&mut transaction);
    let state = bench.store.begin_command(connection, run).await?;
    if state == CommandState::Fresh {
        bench
            .harness
            .write(connection, run.key.as_str())
            .await
            .map_err(Violation::of_harness)?;
        let recorded = bench.store.finish_command(connection, run, &answer).await?;
        must!(recorded, "the transaction is the same");
    }
    H::Store::commit(transaction).await?;
    Ok(state)
}

async fn the_first_runs_and_a_repeat_gets_its_reply<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let order = run("place", "order-7", 1)?;
    must_eq!(
        execute(&bench, &order, Some("{\"n\": 1}")).await?,
        CommandState::Fresh,
        "first"
    );
    for _ in 0..2 {
        let state = execute(&bench, &order, Some("{\"n\": 2}")).await?;
        must_eq!(state, done(Some("{\"n\": 1}")), "repeat");
    }
    bench.must_be_written(&["order-7"]).await?;
    Ok(())
}

async fn another_payload_under_the_same_key_is_refused<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    execute(&bench, &run("place", "k", 1)?, None).await?;
    let state = execute(&bench, &run("place", "k", 2)?, None).await?;
    must_eq!(
        state,
        CommandState::Reused {
            stored: vec![1; 32]
        },
        "other payload"
    );
    Ok(())
}

async fn keys_of_other_scopes_are_other_keys<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    for (scope, key) in [
        ("ab", "c"),
        ("a", "bc"),
        ("abc", "c"),
        ("ab", "C"),
        ("ab", "c "),
    ] {
        let state = execute(&bench, &run(scope, key, 1)?, None).await?;
        must_eq!(state, CommandState::Fresh, "{scope:?} {key:?}");
    }
    Ok(())
}

async fn a_failed_execution_leaves_the_key_free<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let order = run("place", "k", 1)?;
    let mut session = bench.store.open().await?;
    for _ in 0..2 {
        let mut transaction = bench
            .store
            .begin(&mut session, &options(Uuid::now_v7()))
            .await?;
        let connection = H::Store::connection(&mut transaction);
        let state = bench.store.begin_command(connection, &order).await?;
        must_eq!(state, CommandState::Fresh, "the key is free");
        bench
            .store
            .finish_command(connection, &order, &reply(Some("1")))
            .await?;
        H::Store::rollback(transaction).await?;
    }
    must_eq!(
        execute(&bench, &run("place", "k", 2)?, None).await?,
        CommandState::Fresh,
        "free"
    );
    Ok(())
}

async fn a_key_at_work_is_busy<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let order = run("place", "k", 1)?;
    let mut session = bench.store.open().await?;
    let mut transaction = bench
        .store
        .begin(&mut session, &options(Uuid::now_v7()))
        .await?;
    let connection = H::Store::connection(&mut transaction);
    must_eq!(
        bench.store.begin_command(connection, &order).await?,
        CommandState::Fresh,
        "first"
    );
    must_eq!(
        execute(&bench, &order, None).await?,
        CommandState::Busy,
        "meanwhile"
    );
    let other = run("place", "other", 1)?;
    must_eq!(
        execute(&bench, &other, None).await?,
        CommandState::Fresh,
        "another key"
    );
    bench
        .store
        .finish_command(connection, &order, &reply(Some("1")))
        .await?;
    H::Store::commit(transaction).await?;
    let state = execute(&bench, &order, None).await?;
    must_eq!(state, done(Some("1")), "afterwards");
    Ok(())
}

async fn of_many_at_once_one_runs<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let order = run("place", "k", 1)?;
    for _ in 0..20 {
        let tries = (0..4).map(|_| execute(&bench, &order, Some("1")));
        for state in join_all(tries).await {
            let state = state?;
            must!(
                matches!(
                    state,
                    CommandState::Fresh | CommandState::Busy | CommandState::Done(_)
                ),
                "{state:?}"
            );
        }
    }
    bench.must_be_written(&["k"]).await?;
    Ok(())
}

async fn an_old_snapshot_does_not_run_it_again<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let order = run("place", "k", 1)?;
    let mut session = bench.store.open().await?;
    let options = TransactionOptions {
        isolation: Isolation::RepeatableRead,
        ..options(Uuid::now_v7())
    };
    let mut transaction = bench.store.begin(&mut session, &options).await?;
    let connection = H::Store::connection(&mut transaction);
    // The first statement takes the snapshot.
    must!(
        bench.store.fenced(connection, options.fence).await?,
        "the fence"
    );
    must_eq!(
        execute(&bench, &order, None).await?,
        CommandState::Fresh,
        "meanwhile"
    );
    match bench.store.begin_command(connection, &order).await {
        Ok(state) => must_eq!(state, CommandState::Isolated, "behind an old snapshot"),
        Err(error) => must_eq!(
            error.kind,
            crate::StoreErrorKind::Conflict,
            "kind of the error"
        ),
    }
    H::Store::rollback(transaction).await?;
    Ok(())
}

async fn a_key_at_work_behind_a_snapshot_asks_for_another_transaction<H: Harness>(
    harness: &H,
) -> Verdict {
    for isolation in [Isolation::RepeatableRead, Isolation::Serializable] {
        let bench = Bench::new(harness).await?;
        let order = run("place", "k", 1)?;
        let mut first = bench.store.open().await?;
        let options_of_first = options(Uuid::now_v7());
        let mut transaction = bench.store.begin(&mut first, &options_of_first).await?;
        let connection = H::Store::connection(&mut transaction);
        let state = bench.store.begin_command(connection, &order).await?;
        must_eq!(state, CommandState::Fresh, "first");
        let mut second = bench.store.open().await?;
        let options = TransactionOptions {
            isolation,
            ..options(Uuid::now_v7())
        };
        let mut behind = bench.store.begin(&mut second, &options).await?;
        let connection = H::Store::connection(&mut behind);
        let state = bench.store.begin_command(connection, &order).await?;
        must_eq!(state, CommandState::Isolated, "waiting would not help");
        H::Store::rollback(behind).await?;
        H::Store::rollback(transaction).await?;
    }
    Ok(())
}

async fn a_repeat_holds_nothing<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let order = run("place", "k", 1)?;
    execute(&bench, &order, Some("1")).await?;
    let mut sessions = [bench.store.open().await?, bench.store.open().await?];
    let mut open = Vec::new();
    for session in &mut sessions {
        let mut transaction = bench.store.begin(session, &options(Uuid::now_v7())).await?;
        let connection = H::Store::connection(&mut transaction);
        let state = bench.store.begin_command(connection, &order).await?;
        must_eq!(state, done(Some("1")), "beside another repeat");
        open.push(transaction);
    }
    for transaction in open {
        H::Store::rollback(transaction).await?;
    }
    Ok(())
}

async fn a_failed_part_leaves_the_key_free<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let order = run("place", "k", 1)?;
    let mut session = bench.store.open().await?;
    let mut transaction = bench
        .store
        .begin(&mut session, &options(Uuid::now_v7()))
        .await?;
    for _ in 0..2 {
        let mut part = H::Store::nested(&mut transaction).await?;
        let connection = H::Store::connection(&mut part);
        let state = bench.store.begin_command(connection, &order).await?;
        must_eq!(state, CommandState::Fresh, "in a part");
        H::Store::rollback(part).await?;
    }
    let mut part = H::Store::nested(&mut transaction).await?;
    let connection = H::Store::connection(&mut part);
    let state = bench.store.begin_command(connection, &order).await?;
    must_eq!(state, CommandState::Fresh, "in the last part");
    let answer = reply(Some("1"));
    let recorded = bench
        .store
        .finish_command(connection, &order, &answer)
        .await?;
    must!(recorded, "recorded in a part");
    H::Store::commit(part).await?;
    let connection = H::Store::connection(&mut transaction);
    let state = bench.store.begin_command(connection, &order).await?;
    must_eq!(state, done(Some("1")), "later in the same transaction");
    H::Store::commit(transaction).await?;
    let state = execute(&bench, &order, None).await?;
    must_eq!(state, done(Some("1")), "afterwards");
    Ok(())
}

async fn an_error_may_be_the_answer<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let order = run("place", "k", 1)?;
    let refused = CommandAnswer::Error("{\"why\": \"\\u0000\"}".to_owned());
    let state = execute_to(&bench, &order, refused.clone()).await?;
    must_eq!(state, CommandState::Fresh, "first");
    let state = execute(&bench, &order, Some("1")).await?;
    must_eq!(state, CommandState::Done(refused), "repeat");
    let state = execute(&bench, &run("place", "k", 2)?, None).await?;
    let stored = vec![1; 32];
    must_eq!(state, CommandState::Reused { stored }, "another payload");
    Ok(())
}

async fn a_handler_that_ended_its_transaction_records_nothing_and_never_runs_again<H: Harness>(
    harness: &H,
) -> Verdict {
    let bench = Bench::new(harness).await?;
    let order = run("place", "k", 1)?;
    let mut session = bench.store.open().await?;
    let mut transaction = bench
        .store
        .begin(&mut session, &options(Uuid::now_v7()))
        .await?;
    let connection = H::Store::connection(&mut transaction);
    let state = bench.store.begin_command(connection, &order).await?;
    must_eq!(state, CommandState::Fresh, "first");
    let state = bench.store.begin_command(connection, &order).await?;
    must_eq!(state, CommandState::Unfinished, "inside its own execution");
    harness
        .stray_commit(connection)
        .await
        .map_err(Violation::of_harness)?;
    let recorded = bench
        .store
        .finish_command(connection, &order, &reply(Some("1")))
        .await?;
    must!(!recorded, "the transaction is gone");
    drop(transaction);
    H::Store::discard(session);
    for payload in [1, 2] {
        let state = execute(&bench, &run("place", "k", payload)?, None).await?;
        must_eq!(state, CommandState::Unfinished, "afterwards");
    }
    Ok(())
}

async fn a_command_inside_another_speaks_for_itself_only<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let (outer, inner) = (run("place", "outer", 1)?, run("place", "inner", 1)?);
    let failing = run("place", "failing", 1)?;
    let answer = reply(Some("1"));
    let store = &bench.store;
    let mut session = store.open().await?;
    let mut transaction = store.begin(&mut session, &options(Uuid::now_v7())).await?;
    let connection = H::Store::connection(&mut transaction);
    for begun in [&outer, &inner] {
        let state = store.begin_command(connection, begun).await?;
        must_eq!(state, CommandState::Fresh, "first");
    }
    let ends = [
        (&outer, false, "not before the inner one has ended"),
        (&inner, true, "the inner one"),
    ];
    for (run, expected, when) in ends {
        let recorded = store.finish_command(connection, run, &answer).await?;
        must_eq!(recorded, expected, "{when}");
    }
    let mut part = H::Store::nested(&mut transaction).await?;
    let connection = H::Store::connection(&mut part);
    let state = store.begin_command(connection, &failing).await?;
    must_eq!(state, CommandState::Fresh, "first");
    H::Store::rollback(part).await?;
    let connection = H::Store::connection(&mut transaction);
    let recorded = store.finish_command(connection, &outer, &answer).await?;
    must!(recorded, "the outer one, and a failed part says nothing");
    H::Store::commit(transaction).await?;
    for (run, expected) in [(&outer, done(Some("1"))), (&failing, CommandState::Fresh)] {
        must_eq!(execute(&bench, run, None).await?, expected, "afterwards");
    }
    Ok(())
}

async fn a_unique_violation_names_its_constraint<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let mut session = bench.store.open().await?;
    for (row, wanted) in [("a", None), ("a", Some("once_pkey")), ("b", None)] {
        let mut transaction = bench
            .store
            .begin(&mut session, &options(Uuid::now_v7()))
            .await?;
        let connection = H::Store::connection(&mut transaction);
        let written = harness.write_once(connection, row).await;
        let found = match &written {
            Ok(()) => None,
            Err(error) => H::Store::violated_unique(&**error),
        };
        must_eq!(found, wanted, "the constraint of {row:?}");
        match written {
            Ok(()) => H::Store::commit(transaction).await?,
            Err(_) => H::Store::rollback(transaction).await?,
        }
    }
    let mut transaction = bench
        .store
        .begin(&mut session, &options(Uuid::now_v7()))
        .await?;
    let spoilt = harness.spoil(H::Store::connection(&mut transaction)).await;
    let error = spoilt
        .err()
        .map(|error| H::Store::violated_unique(&*error).is_some());
    must_eq!(error, Some(false), "another error");
    H::Store::rollback(transaction).await?;
    Ok(())
}

async fn a_reply_may_be_nothing<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    for (key, reply) in [
        ("none", None),
        ("null", Some("null")),
        ("text", Some("\"\\u0000\"")),
    ] {
        let order = run("place", key, 1)?;
        execute(&bench, &order, reply).await?;
        let state = execute(&bench, &order, Some("1")).await?;
        let wanted = done(reply);
        must_eq!(state, wanted, "the reply of `{key}`");
    }
    Ok(())
}

async fn replies_are_forgotten_after_their_time<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let order = run("place", "k", 1)?;
    execute(&bench, &order, None).await?;
    bench.pass(DAY * 29).await?;
    bench.store.maintain().await?;
    must_eq!(
        execute(&bench, &order, None).await?,
        done(None),
        "within its time"
    );
    bench.pass(DAY * 2).await?;
    bench.store.maintain().await?;
    must_eq!(
        execute(&bench, &order, None).await?,
        CommandState::Fresh,
        "after its time"
    );
    Ok(())
}

async fn hostile_keys_are_kept_apart<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let long = "k".repeat(crate::MAX_KEY_BYTES);
    let keys = [
        "'; DROP TABLE x; --",
        "ä",
        "a\u{308}",
        "%",
        "\\",
        "\n",
        long.as_str(),
    ];
    for (place, key) in keys.iter().enumerate() {
        let order = run("place", key, u8::try_from(place).unwrap_or(0))?;
        must_eq!(
            execute(&bench, &order, None).await?,
            CommandState::Fresh,
            "key {place}"
        );
    }
    for (place, key) in keys.iter().enumerate() {
        let order = run("place", key, u8::try_from(place).unwrap_or(0))?;
        must_eq!(
            execute(&bench, &order, None).await?,
            done(None),
            "key {place}"
        );
    }
    Ok(())
}
