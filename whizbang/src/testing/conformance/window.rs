//! The deduplication window, and what happens at its edge.

use super::{
    Harness, Verdict,
    bench::{Bench, DAY, SECOND, dead, event, id_of},
    must, must_eq, topic,
};
use crate::{
    Envelope, Headers,
    store::{Action, Store},
};

topic! {
    P1: an_id_is_known_for_the_whole_window,
    P1: a_forgotten_id_is_too_old_and_not_fresh,
    P1: an_old_id_that_was_sent_lately_is_young,
    P1: a_message_of_unknown_age_is_accepted,
    P1: an_id_is_kept_while_its_message_waits,
    P1: an_id_is_kept_while_its_message_is_dead,
    P1: before_the_first_purge_nothing_is_too_old,
}

async fn an_id_is_known_for_the_whole_window<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let message = event("noted", 1);
    bench.stored(std::slice::from_ref(&message)).await?;
    bench.complete(&bench.claim_one("single").await?).await?;
    bench.pass(DAY * 29).await?;
    bench.store.maintain().await?;
    let report = bench.store.store_inbox(&[message], None).await?;
    must_eq!(
        (report.duplicates, report.stored),
        (1, 0),
        "duplicates, stored"
    );
    Ok(())
}

async fn a_forgotten_id_is_too_old_and_not_fresh<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let now = bench.now().await?;
    let message = Envelope {
        id: id_of(now - DAY * 32),
        ..event("noted", 1)
    };
    bench.stored(std::slice::from_ref(&message)).await?;
    bench.complete(&bench.claim_one("single").await?).await?;
    bench.pass(DAY * 31).await?;
    bench.store.maintain().await?;
    let report = bench
        .store
        .store_inbox(std::slice::from_ref(&message), None)
        .await?;
    must_eq!((report.too_old, report.stored), (1, 0), "too old, stored");
    let again = bench
        .store
        .store_inbox(std::slice::from_ref(&message), None)
        .await?;
    must_eq!(
        (again.too_old, again.duplicates),
        (0, 1),
        "too old, duplicates"
    );
    must!(
        bench.claim(&["single"]).await?.is_empty(),
        "it does not run"
    );
    let dead = bench.dead().await?;
    must!(
        dead.len() == 1 && dead.iter().all(|letter| letter.reason == "too_old"),
        "one dead letter: {dead:?}"
    );
    Ok(())
}

async fn an_old_id_that_was_sent_lately_is_young<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench.store.maintain().await?;
    let now = bench.now().await?;
    let scheduled = Envelope {
        id: id_of(now - DAY * 90),
        headers: Headers {
            sent_at: Some(now - DAY),
            ..Headers::default()
        },
        ..event("noted", 1)
    };
    bench.stored(&[scheduled]).await?;
    Ok(())
}

async fn a_message_of_unknown_age_is_accepted<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench.store.maintain().await?;
    let message = Envelope {
        id: uuid::Uuid::new_v4(),
        ..event("noted", 1)
    };
    bench.stored(&[message]).await?;
    Ok(())
}

async fn an_id_is_kept_while_its_message_waits<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let message = Envelope {
        id: uuid::Uuid::new_v4(),
        ..event("noted", 1)
    };
    bench.stored(std::slice::from_ref(&message)).await?;
    bench.pass(DAY * 40).await?;
    bench.store.maintain().await?;
    let report = bench.store.store_inbox(&[message], None).await?;
    must_eq!(
        (report.duplicates, report.stored),
        (1, 0),
        "duplicates, stored"
    );
    must_eq!(bench.claim(&["single"]).await?.len(), 1, "rows");
    Ok(())
}

async fn an_id_is_kept_while_its_message_is_dead<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let message = Envelope {
        id: uuid::Uuid::new_v4(),
        ..event("noted", 1)
    };
    bench.stored(std::slice::from_ref(&message)).await?;
    let work = bench.claim_one("single").await?;
    must!(
        bench.report(&work.lease, dead(false)).await?,
        "the lease holds"
    );
    bench.pass(DAY * 40).await?;
    bench.store.maintain().await?;
    let report = bench
        .store
        .store_inbox(std::slice::from_ref(&message), None)
        .await?;
    must_eq!(
        (report.duplicates, report.stored),
        (1, 0),
        "duplicates, stored"
    );
    let letters: Vec<_> = bench.dead().await?.iter().map(|letter| letter.id).collect();
    must_eq!(
        bench.store.discard_dead_letters(&letters).await?,
        1,
        "discarded"
    );
    bench.store.maintain().await?;
    // Its age is unknown, so once nothing reminds of it any more it counts as new.
    bench.stored(&[message]).await?;
    let work = bench.claim_one("single").await?;
    must!(
        bench.report(&work.lease, Action::Retry(SECOND)).await?,
        "the lease holds"
    );
    Ok(())
}

async fn before_the_first_purge_nothing_is_too_old<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let now = bench.now().await?;
    let message = Envelope {
        id: id_of(now - DAY * 300),
        ..event("noted", 1)
    };
    bench.stored(&[message]).await?;
    Ok(())
}
