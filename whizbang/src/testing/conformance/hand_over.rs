//! Rows that are born leased to the process that stores them.

use std::collections::HashSet;

use super::{
    Harness, Verdict,
    bench::{Bench, LEASE, event, in_stream, numbers},
    must, must_eq, topic,
};
use crate::store::Store;

topic! {
    P8: a_handed_over_row_is_leased_and_completes,
    P8: a_handed_over_row_is_taken_over_after_its_lease,
    P11: no_more_is_handed_over_than_there_is_room_for,
    P5: only_the_head_of_a_stream_is_handed_over,
    P5: a_stream_with_a_hole_in_its_handlers_is_not_handed_over_past_it,
    P8: nothing_is_handed_over_to_handlers_without_room,
}

async fn a_handed_over_row_is_leased_and_completes<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let offer = bench.hand_over(&["single", "one"], 10);
    let messages = [event("noted", 1), in_stream("seen", 2, "a")];
    let report = bench.store.store_inbox(&messages, Some(&offer)).await?;
    must_eq!(report.leased.len(), 2, "rows handed over");
    must_eq!(report.waiting, 1, "the row of `two` waits");
    must!(
        bench.claim(&["single", "one"]).await?.is_empty(),
        "they are leased"
    );
    for work in &report.leased {
        must_eq!(work.lease.token, offer.token, "token");
        bench.complete(work).await?;
    }
    bench.pass(LEASE * 2).await?;
    must!(
        bench.claim(&["single", "one"]).await?.is_empty(),
        "they are done"
    );
    Ok(())
}

async fn a_handed_over_row_is_taken_over_after_its_lease<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let offer = bench.hand_over(&["single", "one"], 10);
    let messages = [event("noted", 1), in_stream("seen", 2, "a")];
    bench.store.store_inbox(&messages, Some(&offer)).await?;
    bench.pass(LEASE * 2).await?;
    let works = bench.claim(&["single", "one"]).await?;
    must_eq!(works.len(), 2, "rows taken over");
    must!(
        works
            .iter()
            .all(|work| work.losses == 1 && work.attempts == 0),
        "each has lost one lease: {works:?}"
    );
    Ok(())
}

async fn no_more_is_handed_over_than_there_is_room_for<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let offer = bench.hand_over(&["single"], 3);
    let singles: Vec<_> = (0..10).map(|n| event("noted", n)).collect();
    let report = bench.store.store_inbox(&singles, Some(&offer)).await?;
    must_eq!(
        (report.leased.len(), report.waiting),
        (3, 7),
        "leased, waiting"
    );
    let offer = bench.hand_over(&["one"], 3);
    let streams: Vec<_> = (0..20)
        .map(|n| in_stream("seen", n, &format!("s{}", n % 5)))
        .collect();
    let report = bench.store.store_inbox(&streams, Some(&offer)).await?;
    let streams: HashSet<_> = report
        .leased
        .iter()
        .map(|work| work.lease.stream_id)
        .collect();
    must_eq!(streams.len(), 3, "streams handed over into room for 3");
    Ok(())
}

async fn only_the_head_of_a_stream_is_handed_over<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench.stored(&[in_stream("seen", 1, "a")]).await?;
    let offer = bench.hand_over(&["one"], 10);
    let later = [
        in_stream("seen", 2, "a"),
        in_stream("seen", 3, "b"),
        in_stream("seen", 4, "b"),
    ];
    let report = bench.store.store_inbox(&later, Some(&offer)).await?;
    must_eq!(numbers(&report.leased), [3, 4], "only stream b is new");
    must_eq!(
        numbers(&bench.claim(&["one"]).await?),
        [1, 2],
        "stream a is in order"
    );
    Ok(())
}

async fn a_stream_with_a_hole_in_its_handlers_is_not_handed_over_past_it<H: Harness>(
    harness: &H,
) -> Verdict {
    let bench = Bench::new(harness).await?;
    let offer = bench.hand_over(&["first"], 10);
    let messages = [
        in_stream("opened", 1, "a"),
        in_stream("closed", 2, "a"),
        in_stream("opened", 3, "a"),
        in_stream("closed", 4, "b"),
        in_stream("opened", 5, "b"),
    ];
    let report = bench.store.store_inbox(&messages, Some(&offer)).await?;
    must_eq!(
        numbers(&report.leased),
        [1],
        "row 2 is of a handler without room"
    );
    must_eq!(
        numbers(&bench.claim(&["first", "second"]).await?),
        [4, 5],
        "stream b waits"
    );
    Ok(())
}

async fn nothing_is_handed_over_to_handlers_without_room<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let offer = bench.hand_over(&["two"], 10);
    let report = bench
        .store
        .store_inbox(
            &[event("noted", 1), in_stream("opened", 2, "a")],
            Some(&offer),
        )
        .await?;
    must!(report.leased.is_empty(), "`two` gets neither");
    must_eq!(
        bench.claim(&["single", "first"]).await?.len(),
        2,
        "both can be claimed"
    );
    Ok(())
}
