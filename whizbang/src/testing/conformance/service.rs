//! The service as a whole: who owns the store, who listens, who lives.

use super::{
    Harness, Verdict,
    bench::{Bench, LEASE, LINES, SECOND, command, event, instance, lines},
    must, must_eq, topic,
};
use crate::{
    Envelope, StoreErrorKind,
    store::{Instance, Store},
};

topic! {
    P1: a_store_belongs_to_one_service,
    P8: what_another_instance_listens_to_counts,
    P8: a_command_that_only_another_instance_handles_is_kept,
    P8: an_instance_may_come_and_go,
    P8: a_silent_instance_gives_its_relays_up,
    P8: two_silent_instances_are_found_by_many_heartbeats,
}

async fn a_store_belongs_to_one_service<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let stranger = Instance {
        service: "strangers".to_owned(),
        ..instance()
    };
    let refused = bench
        .store
        .register(&stranger, &lines(&[("spy", "seen", "spy")]))
        .await;
    must!(
        matches!(&refused, Err(error) if error.kind == StoreErrorKind::Setup),
        "another service is refused: {refused:?}"
    );
    let report = bench.store.store_inbox(&[event("seen", 1)], None).await?;
    must_eq!(report.waiting, 2, "its subscriptions are not written");
    bench.store.register(&instance(), &lines(LINES)).await?;
    Ok(())
}

async fn what_another_instance_listens_to_counts<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let newer = lines(&[
        ("newcomer", "seen", "newcomer"),
        ("single", "noted.v2", "single"),
    ]);
    bench.store.register(&instance(), &newer).await?;
    let report = bench
        .store
        .store_inbox(&[event("seen", 1), event("noted.v2", 2)], None)
        .await?;
    must_eq!((report.stored, report.waiting), (2, 4), "stored, waiting");
    // The old instance claims what it can, the newcomer's row waits for the newcomer.
    must_eq!(
        bench.claim(&["one", "two", "single"]).await?.len(),
        3,
        "rows"
    );
    Ok(())
}

async fn a_command_that_only_another_instance_handles_is_kept<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .store
        .register(&instance(), &lines(&[("undoer", "undo", "undoer")]))
        .await?;
    let undo = Envelope {
        message_type: "undo".to_owned(),
        ..command(1)
    };
    let report = bench.store.store_inbox(&[undo], None).await?;
    must_eq!(
        (report.stored, report.unhandled),
        (1, 0),
        "stored, unhandled"
    );
    Ok(())
}

async fn an_instance_may_come_and_go<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let other = instance();
    let all = lines(LINES);
    bench.store.register(&other, &all).await?;
    bench.store.deregister(other.id, LEASE).await?;
    bench.store.deregister(other.id, LEASE).await?;
    let beat = bench
        .store
        .heartbeat(&other, &all, SECOND * 20, LEASE)
        .await?;
    must!(!beat.known, "it has left");
    bench.let_pass(SECOND * 60).await?;
    let beat = bench
        .store
        .heartbeat(&bench.instance, &all, SECOND * 20, LEASE)
        .await?;
    must_eq!(
        (beat.known, beat.dead_peers),
        (true, 0),
        "leaving is not dying"
    );
    bench.store.register(&other, &all).await?;
    let beat = bench
        .store
        .heartbeat(&other, &all, SECOND * 20, LEASE)
        .await?;
    must!(beat.known, "it is back");
    Ok(())
}

async fn a_silent_instance_gives_its_relays_up<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let other = instance();
    let all = lines(LINES);
    bench.store.register(&other, &all).await?;
    let message = event("noted", 1);
    bench
        .publish(&[super::bench::draft(&message, "broker")])
        .await?;
    let long = SECOND * 3600;
    let token = uuid::Uuid::now_v7();
    let rows = bench
        .store
        .claim_outbox("broker", 5, long, token, other.id)
        .await?;
    must_eq!(rows.len(), 1, "rows");
    bench.let_pass(SECOND * 60).await?;
    bench
        .store
        .heartbeat(&bench.instance, &all, SECOND * 20, LEASE)
        .await?;
    let token = uuid::Uuid::now_v7();
    let rows = bench
        .store
        .claim_outbox("broker", 5, long, token, bench.instance.id)
        .await?;
    must_eq!(rows.len(), 1, "rows after its death");
    Ok(())
}

async fn two_silent_instances_are_found_by_many_heartbeats<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let all = lines(LINES);
    for _ in 0..2 {
        let silent = instance();
        bench.store.register(&silent, &all).await?;
        let messages: Vec<_> = (0..20).map(|n| event("noted", n)).collect();
        bench.stored(&messages).await?;
        let mut request = bench.request(&["single"]);
        request.instance = silent.id;
        must_eq!(bench.store.claim(&request).await?.len(), 20, "rows");
    }
    bench.let_pass(SECOND * 30).await?;
    let living: Vec<_> = (0..4).map(|_| instance()).collect();
    for one in &living {
        bench.store.register(one, &all).await?;
    }
    let mut released = 0;
    for _ in 0..3 {
        let beats = living
            .iter()
            .map(|one| bench.store.heartbeat(one, &all, SECOND * 20, LEASE));
        let beats = futures::future::try_join_all(beats).await?;
        released += beats.iter().map(|beat| beat.released).sum::<u64>();
    }
    must_eq!(released, 40, "leases released in all");
    let request = crate::store::ClaimRequest {
        room: Bench::<H>::room(&["single"], 100),
        ..bench.request(&[])
    };
    must_eq!(bench.store.claim(&request).await?.len(), 40, "rows");
    Ok(())
}
