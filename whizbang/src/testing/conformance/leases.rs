//! Leases: renewal, loss, and what is left of the holder afterwards.

use super::{
    Harness, Verdict,
    bench::{
        Bench, LEASE, LINES, SECOND, dead, event, in_stream, instance, lines, number, numbers,
    },
    must, must_eq, topic,
};
use crate::store::{Action, ClaimRequest, Completion, Store};

topic! {
    P3: a_renewed_lease_lasts,
    P3: a_lost_lease_cannot_be_renewed,
    P3: a_lease_that_nobody_took_over_still_counts,
    P3: under_an_old_token_nothing_changes,
    P6: a_suspect_that_is_lost_while_alone_counts_an_attempt,
    P6: starting_alone_needs_the_lease,
    P8: leases_of_a_silent_instance_are_released,
    P8: an_instance_that_was_taken_for_dead_is_told,
    P3: a_batch_of_completions_is_fenced_row_by_row,
    P5: a_batch_of_completions_keeps_its_streams,
    P3: leases_whose_answer_was_lost_are_given_back,
    P8: an_instance_that_leaves_gives_back_what_it_holds,
}

async fn a_renewed_lease_lasts<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[event("noted", 1), in_stream("seen", 2, "a")])
        .await?;
    let works = bench.claim(&["single", "one"]).await?;
    let held: Vec<_> = works.iter().map(|work| work.lease.clone()).collect();
    for _ in 0..4 {
        bench.pass(LEASE / 2).await?;
        let still = bench.store.renew(&held, LEASE).await?;
        must_eq!(still.len(), 2, "leases that still hold");
        must!(
            held.iter().all(|lease| still.contains(lease)),
            "the same ones"
        );
    }
    must!(
        bench.claim(&["single", "one"]).await?.is_empty(),
        "they are leased"
    );
    for work in &works {
        bench.complete(work).await?;
    }
    must!(
        bench.store.renew(&held, LEASE).await?.is_empty(),
        "they are done"
    );
    Ok(())
}

async fn a_lost_lease_cannot_be_renewed<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[
            event("noted", 1),
            in_stream("seen", 2, "a"),
            event("noted", 3),
        ])
        .await?;
    let works = bench.claim(&["single", "one"]).await?;
    let held: Vec<_> = works.iter().map(|work| work.lease.clone()).collect();
    bench.pass(LEASE + SECOND).await?;
    must_eq!(bench.claim(&["single"]).await?.len(), 2, "rows taken over");
    let still = bench.store.renew(&held, LEASE).await?;
    must!(
        still.len() == 1 && still.iter().all(|lease| lease.stream_id.is_some()),
        "only the stream was not taken over: {still:?}"
    );
    Ok(())
}

async fn a_lease_that_nobody_took_over_still_counts<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[event("noted", 1), in_stream("seen", 2, "a")])
        .await?;
    let works = bench.claim(&["single", "one"]).await?;
    bench.pass(LEASE * 3).await?;
    for work in &works {
        bench.complete(work).await?;
    }
    must!(
        bench.claim(&["single", "one"]).await?.is_empty(),
        "they are done"
    );
    Ok(())
}

async fn under_an_old_token_nothing_changes<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[event("noted", 1), in_stream("seen", 2, "a")])
        .await?;
    let old = bench.claim(&["single", "one"]).await?;
    bench.pass(LEASE + SECOND).await?;
    let new = bench.claim(&["single", "one"]).await?;
    must_eq!(new.len(), 2, "rows taken over");
    for work in &old {
        let lease = &work.lease;
        let actions = [
            Action::Retry(SECOND),
            Action::Snooze(SECOND),
            Action::Release,
            dead(false),
        ];
        for action in actions {
            must!(
                !bench.report(lease, action.clone()).await?,
                "{action:?} under an old token"
            );
        }
        must_eq!(
            bench.run(lease, "stale", true).await?,
            Completion::Lost,
            "completion"
        );
        must_eq!(
            bench
                .store
                .complete_batch(std::slice::from_ref(lease))
                .await?,
            [false],
            "batch"
        );
        must!(
            !bench.store.mark_started(lease).await?,
            "start under an old token"
        );
        bench
            .store
            .close_streams(std::slice::from_ref(lease))
            .await?;
        let handlers = ["one".to_owned()];
        let next = bench
            .store
            .next_in_stream(lease, LEASE, 5, &handlers)
            .await?;
        must!(next.is_empty(), "rows under an old token");
    }
    bench.must_be_written(&[]).await?;
    must!(bench.dead().await?.is_empty(), "no dead letters");
    must!(
        bench.claim(&["single", "one"]).await?.is_empty(),
        "the new leases hold"
    );
    for work in &new {
        must_eq!((work.attempts, work.losses), (0, 1), "attempts, losses");
        bench.complete(work).await?;
    }
    Ok(())
}

async fn a_suspect_that_is_lost_while_alone_counts_an_attempt<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[event("noted", 1), in_stream("seen", 2, "a")])
        .await?;
    let mut counts = Vec::new();
    for round in 0..4 {
        let works = bench.claim(&["single", "one"]).await?;
        must_eq!(works.len(), 2, "rows in round {round}");
        counts.push(
            works
                .iter()
                .map(|work| (work.attempts, work.losses))
                .collect::<Vec<_>>(),
        );
        for work in &works {
            if work.losses > 0 {
                must!(
                    bench.store.mark_started(&work.lease).await?,
                    "the lease holds"
                );
            }
        }
        bench.pass(LEASE + SECOND).await?;
    }
    must_eq!(
        counts,
        [[(0, 0); 2], [(0, 1); 2], [(1, 2); 2], [(2, 3); 2]],
        "attempts and losses, round by round"
    );
    let works = bench.claim(&["single", "one"]).await?;
    for work in &works {
        must!(
            bench.report(&work.lease, Action::Retry(SECOND)).await?,
            "the lease holds"
        );
    }
    bench.pass(SECOND * 2).await?;
    for work in bench.claim(&["single", "one"]).await? {
        must_eq!(
            (work.attempts, work.losses),
            (4, 0),
            "a report ends the suspicion"
        );
    }
    Ok(())
}

async fn starting_alone_needs_the_lease<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench.stored(&[event("noted", 1)]).await?;
    let work = bench.claim_one("single").await?;
    must!(
        bench.store.mark_started(&work.lease).await?,
        "the lease holds"
    );
    must!(
        bench.report(&work.lease, Action::Release).await?,
        "the lease holds"
    );
    must!(
        !bench.store.mark_started(&work.lease).await?,
        "it is given back"
    );
    let again = bench.claim_one("single").await?;
    must_eq!(
        (again.attempts, again.losses),
        (0, 0),
        "it was given back, not lost"
    );
    bench.pass(LEASE + SECOND).await?;
    let after = bench.claim_one("single").await?;
    must_eq!(
        (after.attempts, after.losses),
        (0, 1),
        "it had not started this time"
    );
    Ok(())
}

async fn leases_of_a_silent_instance_are_released<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let other = instance();
    bench.store.register(&other, &lines(LINES)).await?;
    bench
        .stored(&[event("noted", 1), in_stream("seen", 2, "a")])
        .await?;
    let mut request = bench.request(&["single", "one"]);
    request.instance = other.id;
    must_eq!(bench.store.claim(&request).await?.len(), 2, "rows");
    let dead_after = SECOND * 20;
    let lines = lines(LINES);
    bench.let_pass(SECOND * 10).await?;
    let beat = bench
        .store
        .heartbeat(&bench.instance, &lines, dead_after, LEASE)
        .await?;
    must_eq!(
        (beat.known, beat.dead_peers),
        (true, 0),
        "known, dead peers"
    );
    bench.let_pass(SECOND * 15).await?;
    let beat = bench
        .store
        .heartbeat(&bench.instance, &lines, dead_after, LEASE)
        .await?;
    must_eq!(
        (beat.dead_peers, beat.released),
        (1, 2),
        "dead peers, leases released"
    );
    let works = bench.claim(&["single", "one"]).await?;
    must_eq!(works.len(), 2, "rows taken over before their lease ran out");
    must!(
        works.iter().all(|work| work.losses == 1),
        "a take-over is a loss"
    );
    Ok(())
}

async fn an_instance_that_was_taken_for_dead_is_told<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let other = instance();
    let lines = lines(LINES);
    bench.store.register(&other, &lines).await?;
    bench.let_pass(SECOND * 30).await?;
    for _ in 0..3 {
        bench
            .store
            .heartbeat(&other, &lines, SECOND * 20, LEASE)
            .await?;
    }
    let beat = bench
        .store
        .heartbeat(&bench.instance, &lines, SECOND * 20, LEASE)
        .await?;
    must!(!beat.known, "it was silent for longer than others wait");
    bench.sign_on().await?;
    let beat = bench
        .store
        .heartbeat(&bench.instance, &lines, SECOND * 20, LEASE)
        .await?;
    must!(beat.known, "it is back");
    Ok(())
}

async fn a_batch_of_completions_is_fenced_row_by_row<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[
            event("noted", 1),
            event("noted", 2),
            in_stream("seen", 3, "a"),
        ])
        .await?;
    let works = bench.claim(&["single", "one"]).await?;
    let mut leases: Vec<_> = works.iter().map(|work| work.lease.clone()).collect();
    leases.sort_by_key(|lease| (lease.stream_id, lease.message_id));
    let mut foreign = leases.clone();
    if let Some(lease) = foreign.first_mut() {
        lease.token = uuid::Uuid::now_v7();
    }
    must_eq!(
        bench.store.complete_batch(&foreign).await?,
        [false, true, true],
        "held"
    );
    must_eq!(
        bench.store.complete_batch(&leases).await?,
        [true, false, false],
        "held"
    );
    Ok(())
}

async fn a_batch_of_completions_keeps_its_streams<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[in_stream("seen", 1, "a"), in_stream("seen", 2, "a")])
        .await?;
    let works = bench.claim(&["one"]).await?;
    let leases: Vec<_> = works.iter().map(|work| work.lease.clone()).collect();
    must_eq!(
        bench.store.complete_batch(&leases).await?,
        [true, true],
        "held"
    );
    bench.stored(&[in_stream("seen", 3, "a")]).await?;
    must!(
        bench.claim(&["one"]).await?.is_empty(),
        "the stream is still held"
    );
    let Some(held) = leases.first() else {
        return Ok(());
    };
    let handlers = ["one".to_owned()];
    let next = bench
        .store
        .next_in_stream(held, LEASE, 5, &handlers)
        .await?;
    must_eq!(
        next.iter().map(number).collect::<Vec<_>>(),
        [3],
        "the next rows"
    );
    Ok(())
}

async fn leases_whose_answer_was_lost_are_given_back<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let offer = bench.hand_over(&["single", "one"], 10);
    let envelopes = [event("noted", 1), in_stream("seen", 2, "a")];
    let report = bench.store.store_inbox(&envelopes, Some(&offer)).await?;
    must_eq!(report.leased.len(), 2, "rows handed over");
    bench
        .stored(&[event("noted", 3), in_stream("seen", 4, "b")])
        .await?;
    let lost = bench.request(&["single", "one"]);
    must_eq!(bench.store.claim(&lost).await?.len(), 2, "rows claimed");
    bench.stored(&[event("noted", 5)]).await?;
    let kept = bench.claim_one("single").await?;

    let me = bench.instance.id;
    let tokens = [offer.token, lost.token];
    let stranger = instance().id;
    let released = bench.store.release_leases(stranger, &tokens, LEASE).await?;
    must_eq!(released, 0, "leases of somebody else");
    let released = bench.store.release_leases(me, &tokens, LEASE).await?;
    must_eq!(released, 4, "rows and streams");
    let works = bench.claim(&["single", "one"]).await?;
    let mut found = numbers(&works);
    found.sort_unstable();
    must_eq!(found, [1, 2, 3, 4], "rows that come at once");
    must!(
        works
            .iter()
            .all(|work| (work.losses, work.attempts) == (0, 0)),
        "nothing is counted: {works:?}"
    );
    must_eq!(
        bench.store.release_leases(me, &tokens, LEASE).await?,
        0,
        "under new tokens"
    );
    bench.complete(&kept).await?;
    Ok(())
}

async fn an_instance_that_leaves_gives_back_what_it_holds<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let other = instance();
    bench.store.register(&other, &lines(LINES)).await?;
    bench
        .stored(&[event("noted", 1), in_stream("seen", 2, "a")])
        .await?;
    let request = ClaimRequest {
        instance: other.id,
        ..bench.request(&["single", "one"])
    };
    let held = bench.store.claim(&request).await?;
    must_eq!(held.len(), 2, "rows");
    bench.store.deregister(other.id, LEASE).await?;
    let works = bench.claim(&["single", "one"]).await?;
    must_eq!(works.len(), 2, "rows that come at once");
    must!(works.iter().all(|work| work.losses == 0), "no loss");
    for work in &held {
        must!(
            !bench.report(&work.lease, Action::Release).await?,
            "the one that left is fenced off"
        );
    }
    Ok(())
}
