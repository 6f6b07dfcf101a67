//! The ways back from the dead letters.

use futures::future::try_join_all;

use super::{
    Harness, Verdict, Violation,
    bench::{Bench, DAY, LEASE, LINES, command, dead, event, in_stream, lines, number, numbers},
    must, must_eq, topic,
};
use crate::{
    Envelope,
    store::{Action, Requeued, Store},
};

topic! {
    P6: a_requeued_message_runs_again_though_its_id_is_known,
    P5: a_requeued_message_joins_its_stream_at_the_end,
    P5: a_parked_message_is_requeued_at_its_place,
    P5: a_parked_stream_goes_on_when_its_dead_letter_is_discarded,
    P6: a_dead_letter_is_requeued_once,
    P8: an_unhandled_command_can_be_requeued_when_somebody_handles_it,
    P8: rows_of_a_handler_that_is_gone_become_dead_letters,
    P8: a_dead_letter_of_a_handler_that_is_gone_stays,
    P6: discarding_is_for_good,
}

async fn die<H: Harness>(bench: &Bench<'_, H>, handler: &str, wanted: i64, park: bool) -> Verdict {
    for work in bench.claim(&[handler]).await? {
        if number(&work) == wanted {
            must!(
                bench.report(&work.lease, dead(park)).await?,
                "the lease holds"
            );
            return Ok(());
        }
    }
    Err(Violation::new("the row to die was not claimed"))
}

async fn requeue_all<H: Harness>(bench: &Bench<'_, H>) -> Result<Vec<Requeued>, Violation> {
    let ids: Vec<_> = bench.dead().await?.iter().map(|letter| letter.id).collect();
    Ok(bench.store.requeue(&ids).await?)
}

fn all(requeued: &[Requeued], outcome: &str, count: usize) -> Verdict {
    must!(
        requeued.len() == count && requeued.iter().all(|one| one.outcome == outcome),
        "{count} times `{outcome}`: {requeued:?}"
    );
    Ok(())
}

async fn a_requeued_message_runs_again_though_its_id_is_known<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench.stored(&[event("seen", 1)]).await?;
    for work in bench.claim(&["one", "two"]).await? {
        if work.lease.handler == "one" {
            must!(
                bench.report(&work.lease, dead(false)).await?,
                "the lease holds"
            );
        } else {
            bench.complete(&work).await?;
        }
    }
    all(&requeue_all(&bench).await?, "requeued", 1)?;
    must!(bench.dead().await?.is_empty(), "no dead letter is left");
    must!(
        bench.claim(&["two"]).await?.is_empty(),
        "only the handler that gave up"
    );
    let work = bench.claim_one("one").await?;
    must_eq!(
        (number(&work), work.attempts, work.losses),
        (1, 0, 0),
        "row, attempts, losses"
    );
    bench.complete(&work).await?;
    Ok(())
}

async fn a_requeued_message_joins_its_stream_at_the_end<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[in_stream("seen", 1, "a"), in_stream("seen", 2, "a")])
        .await?;
    die(&bench, "one", 1, false).await?;
    all(&requeue_all(&bench).await?, "requeued", 1)?;
    bench.stored(&[in_stream("seen", 3, "a")]).await?;
    must_eq!(numbers(&bench.claim(&["one"]).await?), [2, 1, 3], "order");
    Ok(())
}

async fn a_parked_message_is_requeued_at_its_place<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[in_stream("seen", 1, "a"), in_stream("seen", 2, "a")])
        .await?;
    die(&bench, "one", 1, true).await?;
    bench.stored(&[in_stream("seen", 3, "a")]).await?;
    must!(bench.claim(&["one"]).await?.is_empty(), "the stream waits");
    all(&requeue_all(&bench).await?, "requeued", 1)?;
    let works = bench.claim(&["one"]).await?;
    must_eq!(numbers(&works), [1, 2, 3], "order");
    must!(
        works
            .iter()
            .all(|work| work.attempts == 0 && work.losses == 0),
        "fresh: {works:?}"
    );
    for work in &works {
        bench.run(&work.lease, "", false).await?;
    }
    Ok(())
}

async fn a_parked_stream_goes_on_when_its_dead_letter_is_discarded<H: Harness>(
    harness: &H,
) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[in_stream("seen", 1, "a"), in_stream("seen", 2, "a")])
        .await?;
    die(&bench, "one", 1, true).await?;
    let ids: Vec<_> = bench.dead().await?.iter().map(|letter| letter.id).collect();
    must_eq!(
        bench.store.discard_dead_letters(&ids).await?,
        1,
        "discarded"
    );
    let work = bench.claim_one("one").await?;
    must_eq!(number(&work), 2, "the rest");
    bench.complete(&work).await?;
    // Parked with nothing behind it: the next message of the stream must get through.
    bench.stored(&[in_stream("seen", 3, "a")]).await?;
    die(&bench, "one", 3, true).await?;
    let ids: Vec<_> = bench.dead().await?.iter().map(|letter| letter.id).collect();
    must_eq!(
        bench.store.discard_dead_letters(&ids).await?,
        1,
        "discarded"
    );
    bench.stored(&[in_stream("seen", 4, "a")]).await?;
    must_eq!(numbers(&bench.claim(&["one"]).await?), [4], "the next one");
    Ok(())
}

async fn a_dead_letter_is_requeued_once<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let messages: Vec<_> = (0..10).map(|n| event("noted", n)).collect();
    bench.stored(&messages).await?;
    for work in bench.claim(&["single"]).await? {
        must!(
            bench.report(&work.lease, dead(false)).await?,
            "the lease holds"
        );
    }
    let ids: Vec<_> = bench.dead().await?.iter().map(|letter| letter.id).collect();
    let twice: Vec<_> = ids.iter().chain(&ids).copied().collect();
    let calls = (0..4).map(|_| bench.store.requeue(&twice));
    try_join_all(calls).await?;
    must!(bench.dead().await?.is_empty(), "no dead letter is left");
    must_eq!(bench.claim(&["single"]).await?.len(), 10, "rows");
    let none = bench.store.requeue(&ids).await?;
    must!(
        none.iter().all(|one| one.outcome != "requeued"),
        "nothing is left to requeue: {none:?}"
    );
    Ok(())
}

async fn an_unhandled_command_can_be_requeued_when_somebody_handles_it<H: Harness>(
    harness: &H,
) -> Verdict {
    let bench = Bench::new(harness).await?;
    let orphan = Envelope {
        message_type: "undo".to_owned(),
        stream: Some("a".into()),
        ..command(3)
    };
    bench.store.store_inbox(&[orphan], None).await?;
    all(&requeue_all(&bench).await?, "unhandled", 1)?;
    must_eq!(bench.dead().await?.len(), 1, "it stays");
    let newer = lines(&[("undoer", "undo", "act")]);
    bench.store.register(&bench.instance, &newer).await?;
    all(&requeue_all(&bench).await?, "requeued", 1)?;
    let mut request = bench.request(&["act"]);
    for room in &mut request.room {
        room.handler = "undoer".to_owned();
    }
    let works = bench.store.claim(&request).await?;
    must_eq!(numbers(&works), [3], "it runs");
    Ok(())
}

async fn rows_of_a_handler_that_is_gone_become_dead_letters<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[
            event("seen", 1),
            in_stream("seen", 2, "a"),
            in_stream("seen", 3, "a"),
        ])
        .await?;
    bench.let_pass(DAY + LEASE).await?;
    let others: Vec<_> = LINES
        .iter()
        .filter(|(handler, ..)| *handler != "one")
        .copied()
        .collect();
    bench
        .store
        .register(&bench.instance, &lines(&others))
        .await?;
    bench.store.maintain().await?;
    bench.store.maintain().await?;
    let letters = bench.dead().await?;
    must!(
        letters.len() == 3
            && letters
                .iter()
                .all(|letter| letter.reason == "no_handler"
                    && letter.handler.as_deref() == Some("one")),
        "three dead letters of `one`: {letters:?}"
    );
    must_eq!(
        bench.claim(&["two"]).await?.len(),
        3,
        "rows of the other handler"
    );
    bench.stored(&[event("seen", 4)]).await?;
    must!(
        bench.claim(&["one"]).await?.is_empty(),
        "nothing new is stored for it"
    );
    // It comes back, and so may its messages.
    bench.sign_on().await?;
    all(&requeue_all(&bench).await?, "requeued", 3)?;
    let mut found = numbers(&bench.claim(&["one"]).await?);
    found.sort_unstable();
    must_eq!(found, [1, 2, 3], "rows");
    Ok(())
}

async fn a_dead_letter_of_a_handler_that_is_gone_stays<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[event("seen", 1), in_stream("seen", 2, "a")])
        .await?;
    for work in bench.claim(&["one"]).await? {
        must!(
            bench.report(&work.lease, dead(false)).await?,
            "the lease holds"
        );
    }
    bench.let_pass(DAY * 2).await?;
    let others: Vec<_> = LINES
        .iter()
        .filter(|(handler, ..)| *handler != "one")
        .copied()
        .collect();
    bench
        .store
        .register(&bench.instance, &lines(&others))
        .await?;
    bench.store.maintain().await?;
    bench.store.maintain().await?;
    // A row for it would wait for ever, and nobody would look for it.
    all(&requeue_all(&bench).await?, "unhandled", 2)?;
    must_eq!(bench.dead().await?.len(), 2, "they stay");
    Ok(())
}

async fn discarding_is_for_good<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench.stored(&[event("noted", 1)]).await?;
    let work = bench.claim_one("single").await?;
    must!(
        bench.report(&work.lease, Action::Retry(LEASE)).await?,
        "the lease holds"
    );
    bench.pass(LEASE * 2).await?;
    die(&bench, "single", 1, false).await?;
    let letters = bench.dead().await?;
    must_eq!(
        letters
            .iter()
            .map(|letter| letter.attempts)
            .collect::<Vec<_>>(),
        [2],
        "attempts"
    );
    let ids: Vec<_> = letters.iter().map(|letter| letter.id).collect();
    must_eq!(
        bench.store.discard_dead_letters(&ids).await?,
        1,
        "discarded"
    );
    must_eq!(bench.store.discard_dead_letters(&ids).await?, 0, "again");
    must!(bench.dead().await?.is_empty(), "no dead letter is left");
    must!(bench.claim(&["single"]).await?.is_empty(), "and no row");
    Ok(())
}
