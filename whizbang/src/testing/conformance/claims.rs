//! Claiming unordered rows, and the limits of every claim.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use futures::future::try_join_all;
use uuid::Uuid;

use super::{
    Harness, Verdict,
    bench::{Bench, LEASE, SECOND, event, in_stream, lines},
    must, must_eq, topic,
};
use crate::store::{ClaimRequest, Room, Store, Work};

topic! {
    P3: a_claimed_row_is_not_claimed_again_while_its_lease_lasts,
    P6: an_expired_lease_is_taken_over_and_counts_as_a_loss,
    P3: concurrent_claims_share_no_row,
    P11: a_claim_keeps_to_its_limits,
    P8: only_handlers_with_room_are_served,
    P8: rows_of_handlers_nobody_has_here_do_not_stand_in_the_way,
    P11: a_claim_of_nothing_is_empty,
    P8: claims_without_rescan_find_what_is_stored_later,
}

async fn a_claimed_row_is_not_claimed_again_while_its_lease_lasts<H: Harness>(
    harness: &H,
) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[event("noted", 1), in_stream("seen", 2, "a")])
        .await?;
    must_eq!(bench.claim(&["single", "one"]).await?.len(), 2, "rows");
    must!(
        bench.claim(&["single", "one"]).await?.is_empty(),
        "they are leased"
    );
    bench.pass(LEASE / 2).await?;
    must!(
        bench.claim(&["single", "one"]).await?.is_empty(),
        "they still are"
    );
    Ok(())
}

async fn an_expired_lease_is_taken_over_and_counts_as_a_loss<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[
            event("noted", 1),
            in_stream("seen", 2, "a"),
            in_stream("seen", 3, "a"),
        ])
        .await?;
    let first = bench.claim(&["single", "one"]).await?;
    bench.pass(LEASE + SECOND).await?;
    let second = bench.claim(&["single", "one"]).await?;
    must_eq!(second.len(), 3, "rows taken over");
    for work in &second {
        let head = super::bench::number(work) != 3;
        must_eq!(
            work.losses,
            u32::from(head),
            "losses of row {}",
            super::bench::number(work)
        );
        must_eq!(work.attempts, 0, "a loss is no attempt");
        must!(
            first.iter().all(|old| old.lease.token != work.lease.token),
            "the token is new"
        );
    }
    Ok(())
}

async fn concurrent_claims_share_no_row<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let messages: Vec<_> = (0..200)
        .map(|n| {
            if n % 2 == 0 {
                event("noted", n)
            } else {
                in_stream("seen", n, &format!("s{}", n % 31))
            }
        })
        .collect();
    bench.stored(&messages).await?;
    let mut seen = HashSet::new();
    let mut streams = HashSet::new();
    loop {
        let requests: Vec<_> = (0..8)
            .map(|_| ClaimRequest {
                room: Bench::<H>::room(&["single", "one"], 7),
                limit: 11,
                run: 3,
                ..bench.request(&[])
            })
            .collect();
        let claims = requests.iter().map(|request| bench.store.claim(request));
        let claims = try_join_all(claims).await?;
        let mut found = 0;
        for (request, works) in requests.iter().zip(&claims) {
            let mut mine = HashSet::new();
            for work in works {
                found += 1;
                must_eq!(work.lease.token, request.token, "token");
                must!(
                    seen.insert((work.lease.message_id, work.lease.handler.clone())),
                    "row {} was claimed twice",
                    super::bench::number(work)
                );
                mine.extend(work.lease.stream_id);
            }
            for stream in mine {
                must!(streams.insert(stream), "a stream was leased twice");
            }
        }
        if found == 0 {
            break;
        }
    }
    must!(
        seen.len() >= 100 + 31,
        "all unordered rows and all streams were claimed"
    );
    Ok(())
}

async fn a_claim_keeps_to_its_limits<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let mut messages: Vec<_> = (0..30).map(|n| event("noted", n)).collect();
    messages.extend((0..30).map(|n| in_stream("seen", n, &format!("s{}", n % 10))));
    bench.stored(&messages).await?;
    let request = |limits: [usize; 2], limit, run| ClaimRequest {
        room: vec![
            Room {
                limit: limits[0],
                ..one_room("single")
            },
            Room {
                limit: limits[1],
                ..one_room("one")
            },
        ],
        limit,
        run,
        ..bench.request(&[])
    };
    let works = bench.store.claim(&request([4, 5], 100, 2)).await?;
    let singles = |works: &[Work]| {
        let single = works.iter().filter(|work| work.lease.stream_id.is_none());
        single.count()
    };
    let runs = |works: &[Work]| {
        let mut runs = HashMap::new();
        for stream in works.iter().filter_map(|work| work.lease.stream_id) {
            *runs.entry(stream).or_insert(0) += 1;
        }
        runs
    };
    // A store may count rows of both kinds against one budget, so these are upper bounds.
    must!((1..=4).contains(&singles(&works)), "rows without a stream");
    must!((1..=5).contains(&runs(&works).len()), "streams");
    must!(
        runs(&works).values().all(|run| *run <= 2),
        "rows of one stream: {:?}",
        runs(&works)
    );
    let works = bench.store.claim(&request([100, 100], 6, 20)).await?;
    must!(!works.is_empty(), "more was waiting");
    must!(singles(&works) <= 6, "rows without a stream");
    let rows: usize = runs(&works).values().sum();
    must!(rows <= 6, "{rows} rows of streams in a claim of 6");
    Ok(())
}

fn one_room(handler: &str) -> Room {
    Room {
        handler: handler.to_owned(),
        lane: handler.to_owned(),
        limit: 0,
    }
}

async fn only_handlers_with_room_are_served<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[
            event("seen", 1),
            event("noted", 2),
            in_stream("seen", 3, "a"),
        ])
        .await?;
    let works = bench.claim(&["two"]).await?;
    must!(
        works.len() == 2 && works.iter().all(|work| work.lease.handler == "two"),
        "only rows of `two`: {works:?}"
    );
    must_eq!(
        bench.claim(&["one", "single"]).await?.len(),
        3,
        "the others wait"
    );
    Ok(())
}

async fn rows_of_handlers_nobody_has_here_do_not_stand_in_the_way<H: Harness>(
    harness: &H,
) -> Verdict {
    let bench = Bench::new(harness).await?;
    let newer = lines(&[("newcomer", "opened", "pair"), ("alone", "later", "alone")]);
    bench.store.register(&bench.instance, &newer).await?;
    // Each stream's head is of `closed` or of the newcomer, which this caller lacks.
    let mut messages = Vec::new();
    for stream in 0..50 {
        messages.push(in_stream("closed", stream, &format!("s{stream}")));
        messages.push(in_stream("opened", 100 + stream, &format!("s{stream}")));
        messages.push(event("later", stream));
    }
    messages.push(in_stream("opened", 999, "mine"));
    bench.stored(&messages).await?;
    let request = ClaimRequest {
        room: Bench::<H>::room(&["first"], 2),
        limit: 2,
        ..bench.request(&[])
    };
    let works = bench.store.claim(&request).await?;
    must!(
        works.iter().any(|work| super::bench::number(work) == 999),
        "the stream that can go on is found: {works:?}"
    );
    must!(
        works.iter().all(|work| work.lease.handler == "first"),
        "nothing else is leased: {works:?}"
    );
    let rest = bench.claim(&["second"]).await?;
    must_eq!(rest.len(), 50, "the heads of `second` were left alone");
    Ok(())
}

async fn a_claim_of_nothing_is_empty<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench.stored(&[event("noted", 1)]).await?;
    must!(bench.claim(&[]).await?.is_empty(), "no room, no rows");
    let none = ClaimRequest {
        limit: 0,
        ..bench.request(&["single"])
    };
    must!(
        bench.store.claim(&none).await?.is_empty(),
        "a limit of zero"
    );
    must_eq!(
        bench.claim(&["single"]).await?.len(),
        1,
        "the row still waits"
    );
    Ok(())
}

async fn claims_without_rescan_find_what_is_stored_later<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    for round in 0..5 {
        bench
            .stored(&[event("noted", round), in_stream("seen", round, "a")])
            .await?;
        let request = ClaimRequest {
            rescan: false,
            token: Uuid::now_v7(),
            lease: Duration::from_secs(60),
            ..bench.request(&["single", "one", "two"])
        };
        let works = bench.store.claim(&request).await?;
        must_eq!(works.len(), 3, "rows in round {round}");
        for work in &works {
            bench.complete(work).await?;
        }
    }
    Ok(())
}
