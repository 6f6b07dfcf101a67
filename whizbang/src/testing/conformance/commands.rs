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
    store::{CommandRun, CommandState, Isolation, Store, TransactionOptions},
};

topic! {
    P7: the_first_runs_and_a_repeat_gets_its_reply,
    P7: another_payload_under_the_same_key_is_refused,
    P7: keys_of_other_scopes_are_other_keys,
    P7: a_failed_execution_leaves_the_key_free,
    P7: a_key_at_work_is_busy,
    P7: of_many_at_once_one_runs,
    P7: an_old_snapshot_does_not_run_it_again,
    P7: a_reply_may_be_nothing,
    P11: replies_are_forgotten_after_their_time,
    P7: hostile_keys_are_kept_apart,
}

fn run(scope: &str, key: &str, payload: u8) -> Result<CommandRun, Violation> {
    Ok(CommandRun {
        scope: scope.to_owned(),
        key: key.command_key()?,
        fingerprint: [payload; 32],
    })
}

/// Begins and, if it is fresh, finishes and commits.
async fn execute<H: Harness>(
    bench: &Bench<'_, H>,
    run: &CommandRun,
    reply: Option<&str>,
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
        bench.store.finish_command(connection, run, reply).await?;
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
        must_eq!(
            state,
            CommandState::Done(Some("{\"n\": 1}".to_owned())),
            "repeat"
        );
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
            .finish_command(connection, &order, Some("1"))
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
        .finish_command(connection, &order, Some("1"))
        .await?;
    H::Store::commit(transaction).await?;
    let state = execute(&bench, &order, None).await?;
    must_eq!(
        state,
        CommandState::Done(Some("1".to_owned())),
        "afterwards"
    );
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
                    CommandState::Fresh | CommandState::Busy | CommandState::Done(Some(_))
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
        let wanted = CommandState::Done(reply.map(str::to_owned));
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
        CommandState::Done(None),
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
            CommandState::Done(None),
            "key {place}"
        );
    }
    Ok(())
}
