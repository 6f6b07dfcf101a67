//! The order within a lane and stream.

use super::{
    Harness, Verdict, Violation,
    bench::{Bench, LEASE, SECOND, event, in_stream, number, numbers, options},
    must, must_eq, topic,
};
use crate::store::{Action, ClaimRequest, Completion, Store, Work};

topic! {
    P5: a_stream_is_leased_as_a_whole,
    P5: other_streams_and_other_lanes_go_on,
    P5: handlers_of_one_lane_share_one_order,
    P5: a_failing_message_holds_back_its_own_stream_only,
    P5: a_retry_keeps_its_place,
    P5: a_stream_goes_on_in_stored_order_until_it_is_empty,
    P5: a_stream_given_back_goes_on_elsewhere,
    P5: a_stream_that_is_finished_opens_again,
    P5: a_row_stored_while_its_stream_closes_is_found,
    P5: a_row_stored_while_its_stream_is_at_work_comes_next,
    P5: a_stream_is_given_back_at_a_head_the_caller_lacks,
    P5: a_row_completed_without_being_last_keeps_the_stream,
}

async fn run_of(
    bench: &Bench<'_, impl Harness>,
    handler: &str,
    run: usize,
) -> Result<Vec<Work>, Violation> {
    let request = ClaimRequest {
        run,
        ..bench.request(&[handler])
    };
    Ok(bench.store.claim(&request).await?)
}

fn first(works: &[Work]) -> Result<&Work, Violation> {
    works
        .first()
        .ok_or_else(|| Violation::new("no row was claimed"))
}

async fn a_stream_is_leased_as_a_whole<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[
            in_stream("seen", 1, "a"),
            in_stream("seen", 2, "a"),
            in_stream("seen", 3, "a"),
        ])
        .await?;
    let works = run_of(&bench, "one", 2).await?;
    must_eq!(numbers(&works), [1, 2], "the run");
    must!(
        bench.claim(&["one"]).await?.is_empty(),
        "row 3 waits behind the lease"
    );
    bench.stored(&[in_stream("seen", 4, "a")]).await?;
    must!(
        bench.claim(&["one"]).await?.is_empty(),
        "so does what comes later"
    );
    Ok(())
}

async fn other_streams_and_other_lanes_go_on<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench.stored(&[in_stream("seen", 1, "a")]).await?;
    must_eq!(numbers(&bench.claim(&["one"]).await?), [1], "stream a");
    bench.stored(&[in_stream("seen", 2, "b")]).await?;
    must_eq!(numbers(&bench.claim(&["one"]).await?), [2], "stream b");
    must_eq!(
        bench.claim(&["two"]).await?.len(),
        2,
        "both streams in the other lane"
    );
    Ok(())
}

async fn handlers_of_one_lane_share_one_order<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[
            in_stream("opened", 1, "a"),
            in_stream("closed", 2, "a"),
            in_stream("opened", 3, "a"),
        ])
        .await?;
    must!(
        bench.claim(&["second"]).await?.is_empty(),
        "row 2 waits for row 1"
    );
    let works = bench.claim(&["first", "second"]).await?;
    must_eq!(numbers(&works), [1, 2, 3], "the run");
    must!(
        bench.claim(&["second"]).await?.is_empty(),
        "one lease for both"
    );
    Ok(())
}

async fn a_failing_message_holds_back_its_own_stream_only<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[
            in_stream("seen", 1, "a"),
            in_stream("seen", 2, "a"),
            in_stream("seen", 3, "b"),
        ])
        .await?;
    let works = bench.claim(&["one"]).await?;
    must_eq!(works.len(), 3, "rows");
    for work in works.iter().filter(|work| number(work) != 2) {
        if number(work) == 1 {
            must!(
                bench.report(&work.lease, Action::Retry(LEASE)).await?,
                "the lease holds"
            );
        } else {
            bench.complete(work).await?;
        }
    }
    bench
        .stored(&[
            in_stream("seen", 4, "b"),
            in_stream("seen", 5, "a"),
            event("seen", 6),
        ])
        .await?;
    let mut found = numbers(&bench.claim(&["one"]).await?);
    found.sort_unstable();
    must_eq!(found, [4, 6], "only stream a waits");
    Ok(())
}

async fn a_retry_keeps_its_place<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[in_stream("seen", 1, "a"), in_stream("seen", 2, "a")])
        .await?;
    let works = bench.claim(&["one"]).await?;
    let work = first(&works)?;
    must!(
        bench.report(&work.lease, Action::Retry(SECOND * 5)).await?,
        "the lease holds"
    );
    bench.stored(&[in_stream("seen", 3, "a")]).await?;
    must!(
        bench.claim(&["one"]).await?.is_empty(),
        "not before its time"
    );
    bench.pass(SECOND * 6).await?;
    let works = bench.claim(&["one"]).await?;
    must_eq!(numbers(&works), [1, 2, 3], "order");
    must_eq!(first(&works)?.attempts, 1, "attempts");
    Ok(())
}

async fn a_stream_goes_on_in_stored_order_until_it_is_empty<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let messages: Vec<_> = (1..=7).map(|n| in_stream("seen", n, "a")).collect();
    bench.stored(&messages).await?;
    let mut works = run_of(&bench, "one", 3).await?;
    let mut order = Vec::new();
    let handlers = ["one".to_owned()];
    while let Some(held) = works.first().map(|work| work.lease.clone()) {
        must!(order.len() < 7, "completed rows come again: {order:?}");
        for (place, work) in works.iter().enumerate() {
            order.push(number(work));
            let last = place + 1 == works.len();
            let completion = bench.run(&work.lease, "", last).await?;
            let wanted = if order.len() == 7 {
                Completion::Done
            } else {
                Completion::More
            };
            must_eq!(completion, wanted, "completion of row {}", number(work));
        }
        works = bench
            .store
            .next_in_stream(&held, LEASE, 3, &handlers)
            .await?;
    }
    must_eq!(order, [1, 2, 3, 4, 5, 6, 7], "order");
    must!(bench.claim(&["one"]).await?.is_empty(), "nothing is left");
    Ok(())
}

async fn a_stream_given_back_goes_on_elsewhere<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[in_stream("seen", 1, "a"), in_stream("seen", 2, "a")])
        .await?;
    let works = run_of(&bench, "one", 1).await?;
    let work = first(&works)?;
    must_eq!(
        bench.run(&work.lease, "", true).await?,
        Completion::More,
        "row 2 is left"
    );
    bench
        .store
        .close_streams(std::slice::from_ref(&work.lease))
        .await?;
    let rest = bench.claim(&["one"]).await?;
    must_eq!(numbers(&rest), [2], "the rest");
    must_eq!(first(&rest)?.losses, 0, "giving back is no loss");
    // Under the old token nothing can be given back any more.
    bench
        .store
        .close_streams(std::slice::from_ref(&work.lease))
        .await?;
    must!(
        bench.claim(&["one"]).await?.is_empty(),
        "the new lease holds"
    );
    Ok(())
}

async fn a_stream_that_is_finished_opens_again<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    for round in 0..3 {
        bench.stored(&[in_stream("seen", round, "a")]).await?;
        let work = bench.claim_one("one").await?;
        must_eq!(number(&work), round, "row");
        must_eq!(
            bench.run(&work.lease, "", true).await?,
            Completion::Done,
            "completion"
        );
    }
    Ok(())
}

async fn a_row_stored_while_its_stream_closes_is_found<H: Harness>(harness: &H) -> Verdict {
    for commits in [true, false] {
        let bench = Bench::new(harness).await?;
        bench.stored(&[in_stream("seen", 1, "a")]).await?;
        let work = bench.claim_one("one").await?;
        let mut session = bench.store.open().await?;
        let mut transaction = bench
            .store
            .begin(&mut session, &options(work.lease.token))
            .await?;
        let connection = H::Store::connection(&mut transaction);
        let completion = bench.store.complete(connection, &work.lease, true).await?;
        must_eq!(completion, Completion::Done, "completion");
        let later = [in_stream("seen", 2, "a"), in_stream("seen", 3, "a")];
        bench.stored(&later).await?;
        must!(
            numbers(&bench.claim(&["one"]).await?)
                .iter()
                .all(|n| *n != 1),
            "row 1 is being completed"
        );
        if commits {
            H::Store::commit(transaction).await?;
        } else {
            H::Store::rollback(transaction).await?;
            must!(
                bench.report(&work.lease, Action::Release).await?,
                "the lease holds"
            );
        }
        bench.pass(SECOND * 2).await?;
        let mut found = numbers(&bench.claim(&["one"]).await?);
        if found.is_empty() {
            // The rows had to fall in behind their gate first.
            bench.pass(SECOND * 2).await?;
            found = numbers(&bench.claim(&["one"]).await?);
        }
        let wanted: &[i64] = if commits { &[2, 3] } else { &[1, 2, 3] };
        must_eq!(
            found,
            wanted,
            "rows after the {}",
            if commits { "commit" } else { "rollback" }
        );
    }
    Ok(())
}

async fn a_row_stored_while_its_stream_is_at_work_comes_next<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench.stored(&[in_stream("seen", 1, "a")]).await?;
    let work = bench.claim_one("one").await?;
    bench.stored(&[in_stream("seen", 2, "a")]).await?;
    must!(bench.claim(&["one"]).await?.is_empty(), "it waits");
    must_eq!(
        bench.run(&work.lease, "", true).await?,
        Completion::More,
        "row 2 is there"
    );
    let handlers = ["one".to_owned()];
    let next = bench
        .store
        .next_in_stream(&work.lease, LEASE, 20, &handlers)
        .await?;
    must_eq!(numbers(&next), [2], "the next rows");
    must_eq!(
        first(&next)?.lease.token,
        work.lease.token,
        "under the same lease"
    );
    bench.complete(first(&next)?).await?;
    Ok(())
}

async fn a_stream_is_given_back_at_a_head_the_caller_lacks<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[
            in_stream("opened", 1, "a"),
            in_stream("closed", 2, "a"),
            in_stream("opened", 3, "a"),
        ])
        .await?;
    let works = bench.claim(&["first"]).await?;
    must_eq!(numbers(&works), [1], "the run ends before row 2");
    let work = first(&works)?;
    must_eq!(
        bench.run(&work.lease, "", true).await?,
        Completion::More,
        "row 2 is left"
    );
    let handlers = ["first".to_owned()];
    let next = bench
        .store
        .next_in_stream(&work.lease, LEASE, 20, &handlers)
        .await?;
    must!(next.is_empty(), "row 2 is not for this caller");
    let works = bench.claim(&["first", "second"]).await?;
    must_eq!(numbers(&works), [2, 3], "others can take it at once");
    must_eq!(first(&works)?.losses, 0, "giving back is no loss");
    Ok(())
}

async fn a_row_completed_without_being_last_keeps_the_stream<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench.stored(&[in_stream("seen", 1, "a")]).await?;
    let work = bench.claim_one("one").await?;
    must_eq!(
        bench.run(&work.lease, "", false).await?,
        Completion::More,
        "not said to be last"
    );
    bench.stored(&[in_stream("seen", 2, "a")]).await?;
    must!(
        bench.claim(&["one"]).await?.is_empty(),
        "the stream is still held"
    );
    let handlers = ["one".to_owned()];
    let next = bench
        .store
        .next_in_stream(&work.lease, LEASE, 20, &handlers)
        .await?;
    must_eq!(numbers(&next), [2], "the next rows");
    bench.complete(first(&next)?).await?;
    let none = bench
        .store
        .next_in_stream(&work.lease, LEASE, 20, &handlers)
        .await?;
    must!(none.is_empty(), "nothing is left");
    Ok(())
}
