//! The handler's transaction: effects, outgoing messages and completion together or not at all.

use uuid::Uuid;

use super::{
    Harness, Verdict, Violation,
    bench::{Bench, LEASE, SECOND, SERVICE, draft, event, in_stream, numbers, options},
    must, must_eq, topic,
};
use crate::{
    StoreErrorKind,
    store::{Action, Completion, Isolation, Store, TransactionOptions},
};

topic! {
    P2: effects_outgoing_messages_and_completion_commit_together,
    P4: a_rollback_leaves_nothing,
    P2: a_dropped_transaction_leaves_nothing,
    P2: an_uncommitted_completion_is_invisible,
    P3: only_one_of_two_holders_commits,
    P3: a_row_completes_once,
    P2: a_handler_that_ended_its_transaction_is_unfenced,
    P2: a_swallowed_error_does_not_complete,
    P2: a_failed_part_rolls_back_alone,
    P2: the_fence_is_that_of_the_transaction,
    P5: at_other_isolation_levels_a_stream_stays_open,
}

async fn write<H: Harness>(
    harness: &H,
    connection: &mut <H::Store as Store>::Connection,
    row: &str,
) -> Verdict {
    harness
        .write(connection, row)
        .await
        .map_err(Violation::of_harness)
}

async fn effects_outgoing_messages_and_completion_commit_together<H: Harness>(
    harness: &H,
) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench.stored(&[event("noted", 1)]).await?;
    let work = bench.claim_one("single").await?;
    let mut session = bench.store.open().await?;
    let mut transaction = bench
        .store
        .begin(&mut session, &options(work.lease.token))
        .await?;
    let connection = H::Store::connection(&mut transaction);
    write(harness, connection, "effect").await?;
    let new = bench
        .store
        .store_outbox(connection, &[draft(&event("noted", 2), SERVICE)])
        .await?;
    must_eq!(new, [true], "new outbox rows");
    let completion = bench.store.complete(connection, &work.lease, true).await?;
    must_eq!(completion, Completion::Done, "completion");
    bench.must_be_written(&[]).await?;
    must_eq!(
        bench.store.deliver_locally(SERVICE, 10, None).await?.moved,
        0,
        "not before the commit"
    );
    H::Store::commit(transaction).await?;
    bench.must_be_written(&["effect"]).await?;
    must_eq!(
        bench.store.deliver_locally(SERVICE, 10, None).await?.moved,
        1,
        "outbox rows"
    );
    must_eq!(
        numbers(&bench.claim(&["single"]).await?),
        [2],
        "only the published message is left"
    );
    Ok(())
}

async fn a_rollback_leaves_nothing<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[event("noted", 1), in_stream("seen", 2, "a")])
        .await?;
    for work in bench.claim(&["single", "one"]).await? {
        let mut session = bench.store.open().await?;
        for _ in 0..2 {
            let mut transaction = bench
                .store
                .begin(&mut session, &options(work.lease.token))
                .await?;
            let connection = H::Store::connection(&mut transaction);
            write(harness, connection, "effect").await?;
            bench
                .store
                .store_outbox(connection, &[draft(&event("noted", 3), SERVICE)])
                .await?;
            let completion = bench.store.complete(connection, &work.lease, true).await?;
            must_eq!(completion, Completion::Done, "completion");
            H::Store::rollback(transaction).await?;
        }
        bench.must_be_written(&[]).await?;
        must_eq!(
            bench.store.deliver_locally(SERVICE, 10, None).await?.moved,
            0,
            "outbox rows"
        );
        // The session and the lease are as good as before.
        bench.complete(&work).await?;
    }
    Ok(())
}

async fn a_dropped_transaction_leaves_nothing<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench.stored(&[event("noted", 1)]).await?;
    let work = bench.claim_one("single").await?;
    let mut session = bench.store.open().await?;
    let mut transaction = bench
        .store
        .begin(&mut session, &options(work.lease.token))
        .await?;
    let connection = H::Store::connection(&mut transaction);
    write(harness, connection, "effect").await?;
    bench.store.complete(connection, &work.lease, true).await?;
    drop(transaction);
    H::Store::discard(session);
    // A new connection must not wait for the dropped one for long.
    bench.complete(&work).await?;
    bench.must_be_written(&[]).await?;
    Ok(())
}

async fn an_uncommitted_completion_is_invisible<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[event("noted", 1), in_stream("seen", 2, "a")])
        .await?;
    for work in bench.claim(&["single", "one"]).await? {
        let handler = work.lease.handler.clone();
        // The lease has run out, but nobody has taken over.
        bench.pass(LEASE * 2).await?;
        let mut session = bench.store.open().await?;
        let mut transaction = bench
            .store
            .begin(&mut session, &options(work.lease.token))
            .await?;
        let connection = H::Store::connection(&mut transaction);
        bench.store.complete(connection, &work.lease, true).await?;
        must!(
            bench.claim(&[&handler]).await?.is_empty(),
            "a row that is being completed is not taken over"
        );
        let still = bench
            .store
            .renew(std::slice::from_ref(&work.lease), LEASE)
            .await?;
        must_eq!(still.len(), 1, "it counts as held");
        H::Store::commit(transaction).await?;
        must!(bench.claim(&[&handler]).await?.is_empty(), "it is done");
    }
    Ok(())
}

async fn only_one_of_two_holders_commits<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[event("noted", 1), in_stream("seen", 2, "a")])
        .await?;
    for old in bench.claim(&["single", "one"]).await? {
        let handler = old.lease.handler.clone();
        let mut session = bench.store.open().await?;
        let mut stalled = bench
            .store
            .begin(&mut session, &options(old.lease.token))
            .await?;
        write(harness, H::Store::connection(&mut stalled), "stalled").await?;
        bench.pass(LEASE + SECOND).await?;
        let new = bench.claim_one(&handler).await?;
        bench.run(&new.lease, &handler, true).await?;
        let connection = H::Store::connection(&mut stalled);
        let completion = bench.store.complete(connection, &old.lease, true).await?;
        must_eq!(completion, Completion::Lost, "the stalled one");
        H::Store::rollback(stalled).await?;
    }
    bench.must_be_written(&["one", "single"]).await?;
    Ok(())
}

async fn a_row_completes_once<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[
            event("noted", 1),
            in_stream("seen", 2, "a"),
            in_stream("seen", 3, "a"),
        ])
        .await?;
    for work in bench.claim(&["single", "one"]).await? {
        let first = bench.run(&work.lease, "effect", false).await?;
        must!(
            matches!(first, Completion::Done | Completion::More),
            "the first: {first:?}"
        );
        let again = bench.run(&work.lease, "again", false).await?;
        must_eq!(again, Completion::Lost, "the second");
    }
    bench
        .must_be_written(&["effect", "effect", "effect"])
        .await?;
    Ok(())
}

async fn a_handler_that_ended_its_transaction_is_unfenced<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench.stored(&[event("noted", 1)]).await?;
    let work = bench.claim_one("single").await?;
    let mut session = bench.store.open().await?;
    let mut transaction = bench
        .store
        .begin(&mut session, &options(work.lease.token))
        .await?;
    let connection = H::Store::connection(&mut transaction);
    write(harness, connection, "kept").await?;
    harness
        .stray_commit(connection)
        .await
        .map_err(Violation::of_harness)?;
    must!(
        !bench.store.fenced(connection, work.lease.token).await?,
        "the fence went with the transaction"
    );
    let completion = bench.store.complete(connection, &work.lease, true).await?;
    must_eq!(completion, Completion::Unfenced, "completion");
    drop(transaction);
    H::Store::discard(session);
    bench.must_be_written(&["kept"]).await?;
    must!(
        bench.report(&work.lease, Action::Release).await?,
        "the row is still leased"
    );
    Ok(())
}

async fn a_swallowed_error_does_not_complete<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench.stored(&[event("noted", 1)]).await?;
    let work = bench.claim_one("single").await?;
    let mut session = bench.store.open().await?;
    let mut transaction = bench
        .store
        .begin(&mut session, &options(work.lease.token))
        .await?;
    let connection = H::Store::connection(&mut transaction);
    write(harness, connection, "effect").await?;
    bench.spoil(connection).await?;
    let completion = bench.store.complete(connection, &work.lease, true).await;
    match completion {
        Err(error) => must_eq!(error.kind, StoreErrorKind::Aborted, "kind of the error"),
        Ok(found) => {
            return Err(Violation::new(format!(
                "a failed transaction completed: {found:?}"
            )));
        }
    }
    let fenced = bench
        .store
        .fenced(H::Store::connection(&mut transaction), work.lease.token)
        .await;
    must!(
        matches!(&fenced, Err(error) if error.kind == StoreErrorKind::Aborted),
        "the fence of a failed transaction: {fenced:?}"
    );
    H::Store::rollback(transaction).await?;
    bench.must_be_written(&[]).await?;
    bench.complete(&work).await?;
    Ok(())
}

async fn a_failed_part_rolls_back_alone<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let mut session = bench.store.open().await?;
    let mut transaction = bench
        .store
        .begin(&mut session, &options(Uuid::now_v7()))
        .await?;
    write(harness, H::Store::connection(&mut transaction), "outer").await?;
    {
        let mut part = H::Store::nested(&mut transaction).await?;
        let connection = H::Store::connection(&mut part);
        write(harness, connection, "failed part").await?;
        bench.spoil(connection).await?;
        H::Store::rollback(part).await?;
    }
    {
        let mut part = H::Store::nested(&mut transaction).await?;
        write(harness, H::Store::connection(&mut part), "good part").await?;
        let mut inner = H::Store::nested(&mut part).await?;
        write(harness, H::Store::connection(&mut inner), "dropped part").await?;
        drop(inner);
        H::Store::commit(part).await?;
    }
    write(
        harness,
        H::Store::connection(&mut transaction),
        "outer again",
    )
    .await?;
    H::Store::commit(transaction).await?;
    bench
        .must_be_written(&["good part", "outer", "outer again"])
        .await?;
    Ok(())
}

async fn the_fence_is_that_of_the_transaction<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let mut session = bench.store.open().await?;
    let fence = Uuid::now_v7();
    let mut transaction = bench.store.begin(&mut session, &options(fence)).await?;
    let connection = H::Store::connection(&mut transaction);
    must!(
        bench.store.fenced(connection, fence).await?,
        "its own fence"
    );
    must!(
        !bench.store.fenced(connection, Uuid::now_v7()).await?,
        "another fence"
    );
    must!(
        bench.store.in_transaction(connection).await?,
        "a transaction is open"
    );
    H::Store::commit(transaction).await?;
    let mut transaction = bench
        .store
        .begin(&mut session, &options(Uuid::now_v7()))
        .await?;
    let connection = H::Store::connection(&mut transaction);
    must!(
        !bench.store.fenced(connection, fence).await?,
        "the fence of an earlier one"
    );
    harness
        .stray_commit(connection)
        .await
        .map_err(Violation::of_harness)?;
    must!(
        !bench.store.in_transaction(connection).await?,
        "no transaction is open"
    );
    drop(transaction);
    H::Store::discard(session);
    Ok(())
}

async fn at_other_isolation_levels_a_stream_stays_open<H: Harness>(harness: &H) -> Verdict {
    for isolation in [Isolation::RepeatableRead, Isolation::Serializable] {
        let bench = Bench::new(harness).await?;
        bench.stored(&[in_stream("seen", 1, "a")]).await?;
        let work = bench.claim_one("one").await?;
        let mut session = bench.store.open().await?;
        let options = TransactionOptions {
            isolation,
            ..options(work.lease.token)
        };
        let mut transaction = bench.store.begin(&mut session, &options).await?;
        let connection = H::Store::connection(&mut transaction);
        write(harness, connection, "snapshot").await?;
        bench.stored(&[in_stream("seen", 2, "a")]).await?;
        let completion = bench.store.complete(connection, &work.lease, true).await?;
        must_eq!(completion, Completion::More, "an old snapshot cannot tell");
        H::Store::commit(transaction).await?;
        let handlers = ["one".to_owned()];
        let next = bench
            .store
            .next_in_stream(&work.lease, LEASE, 5, &handlers)
            .await?;
        must_eq!(numbers(&next), [2], "the row the snapshot did not see");
    }
    Ok(())
}
