//! The outbox: local delivery, schedules, and the relay.

use std::time::Duration;

use futures::future::try_join_all;
use uuid::Uuid;

use super::{
    Harness, Verdict, Violation,
    bench::{Bench, SECOND, SERVICE, draft, event, in_stream, number_in, numbers},
    must, must_eq, topic,
};
use crate::store::{ClaimRequest, OutboxDraft, OutboxRow, Refusal, Schedule, Store};

const BROKER: &str = "broker";
const RELAY_LEASE: Duration = Duration::from_secs(15);

topic! {
    P4: local_delivery_moves_each_row_once,
    P5: local_delivery_keeps_the_order,
    P4: local_deliveries_at_once_move_each_row_once,
    P4: local_delivery_hands_over_with_payload,
    P1: a_known_id_is_moved_and_not_stored_again,
    P4: an_event_nobody_wants_leaves_the_outbox,
    P4: an_id_waits_once_for_each_destination,
    P4: a_scheduled_message_waits_for_its_time,
    P4: a_scheduled_message_can_be_cancelled_until_it_leaves,
    P4: what_has_left_for_one_destination_cannot_be_cancelled,
    P4: a_row_stays_until_it_is_acknowledged,
    P5: one_instance_relays_at_a_time,
    P1: the_first_sending_is_remembered,
    P5: a_refused_row_holds_back_its_stream_only,
    P6: a_row_refused_for_good_is_a_dead_letter_and_its_stream_goes_on,
    P5: a_scheduled_message_joins_its_stream_when_it_falls_due,
    P4: an_acknowledged_row_is_removed_whoever_relays,
    P3: a_refusal_counts_from_the_relay_that_holds_the_lease_only,
}

struct Relay<'b, 'h, H: Harness> {
    bench: &'b Bench<'h, H>,
    token: Uuid,
    instance: Uuid,
}

impl<'b, 'h, H: Harness> Relay<'b, 'h, H> {
    fn new(bench: &'b Bench<'h, H>) -> Self {
        Self {
            bench,
            token: Uuid::now_v7(),
            instance: Uuid::now_v7(),
        }
    }

    async fn claim(&self, limit: usize) -> Result<Vec<OutboxRow>, Violation> {
        let store = &self.bench.store;
        Ok(store
            .claim_outbox(BROKER, limit, RELAY_LEASE, self.token, self.instance)
            .await?)
    }

    async fn acknowledge(&self, rows: &[OutboxRow]) -> Result<u64, Violation> {
        let ids: Vec<_> = rows.iter().map(|row| row.envelope.id).collect();
        Ok(self
            .bench
            .store
            .complete_outbox(BROKER, self.token, &ids)
            .await?)
    }

    async fn refuse(&self, row: &OutboxRow, retry: Option<Duration>) -> Verdict {
        let refusal = Refusal {
            message_id: row.envelope.id,
            retry,
            error: "unroutable".to_owned(),
        };
        must!(self.report(&refusal).await?, "the relay has its lease");
        Ok(())
    }

    async fn report(&self, refusal: &Refusal) -> Result<bool, Violation> {
        let store = &self.bench.store;
        let refusals = std::slice::from_ref(refusal);
        Ok(store.report_outbox(BROKER, self.token, refusals).await?)
    }
}

fn outgoing(rows: &[OutboxRow]) -> Vec<i64> {
    rows.iter()
        .map(|row| number_in(row.envelope.payload.as_str()).unwrap_or(-1))
        .collect()
}

fn to_broker(numbers: impl IntoIterator<Item = (i64, &'static str)>) -> Vec<OutboxDraft> {
    numbers
        .into_iter()
        .map(|(n, stream)| match stream {
            "" => draft(&event("noted", n), BROKER),
            stream => draft(&in_stream("seen", n, stream), BROKER),
        })
        .collect()
}

async fn local_delivery_moves_each_row_once<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let drafts: Vec<_> = (0..5).map(|n| draft(&event("noted", n), SERVICE)).collect();
    must_eq!(bench.publish(&drafts).await?, [true; 5], "new");
    let first = bench.store.deliver_locally(SERVICE, 3, None).await?;
    must_eq!((first.moved, first.report.stored), (3, 3), "moved, stored");
    let second = bench.store.deliver_locally(SERVICE, 3, None).await?;
    must_eq!(
        (second.moved, second.report.stored),
        (2, 2),
        "moved, stored"
    );
    must_eq!(
        bench.store.deliver_locally(SERVICE, 3, None).await?.moved,
        0,
        "moved"
    );
    let mut found = numbers(&bench.claim(&["single"]).await?);
    found.sort_unstable();
    must_eq!(found, [0, 1, 2, 3, 4], "rows");
    must_eq!(
        bench
            .store
            .deliver_locally("elsewhere", 3, None)
            .await?
            .moved,
        0,
        "elsewhere"
    );
    Ok(())
}

async fn local_delivery_keeps_the_order<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    for n in 0..9 {
        bench
            .publish(&[draft(&in_stream("seen", n, "a"), SERVICE)])
            .await?;
    }
    for _ in 0..4 {
        bench.store.deliver_locally(SERVICE, 4, None).await?;
    }
    let found = numbers(&bench.claim(&["one"]).await?);
    must_eq!(found, (0..9).collect::<Vec<_>>(), "order");
    Ok(())
}

async fn local_deliveries_at_once_move_each_row_once<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let drafts: Vec<_> = (0..40)
        .map(|n| draft(&in_stream("seen", n, "a"), SERVICE))
        .collect();
    bench.publish(&drafts).await?;
    let mut moved = 0;
    for _ in 0..20 {
        let calls = (0..4).map(|_| bench.store.deliver_locally(SERVICE, 3, None));
        let round: u64 = try_join_all(calls)
            .await?
            .iter()
            .map(|call| call.moved)
            .sum();
        moved += round;
        if round == 0 {
            break;
        }
    }
    must_eq!(moved, 40, "moved");
    let request = ClaimRequest {
        run: 100,
        ..bench.request(&["one"])
    };
    let found = numbers(&bench.store.claim(&request).await?);
    must_eq!(found, (0..40).collect::<Vec<_>>(), "order");
    Ok(())
}

async fn local_delivery_hands_over_with_payload<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let mut message = in_stream("seen", 4, "a");
    message.correlation_id = Some(Uuid::now_v7());
    message.causation_id = Some(Uuid::now_v7());
    message
        .headers
        .headers
        .insert("a".to_owned(), "b".to_owned());
    bench.publish(&[draft(&message, SERVICE)]).await?;
    let offer = bench.hand_over(&["one"], 5);
    let delivery = bench
        .store
        .deliver_locally(SERVICE, 10, Some(&offer))
        .await?;
    must_eq!(
        (delivery.report.leased.len(), delivery.report.waiting),
        (1, 1),
        "leased, waiting"
    );
    for work in &delivery.report.leased {
        must_eq!(work.payload, message.payload, "payload");
        must_eq!(work.headers.headers, message.headers.headers, "headers");
        must_eq!(work.correlation_id, message.correlation_id, "correlation");
        must_eq!(work.causation_id, message.causation_id, "causation");
        must_eq!(work.lease.token, offer.token, "token");
        bench.complete(work).await?;
    }
    Ok(())
}

async fn a_known_id_is_moved_and_not_stored_again<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let message = event("noted", 1);
    bench.stored(std::slice::from_ref(&message)).await?;
    bench.publish(&[draft(&message, SERVICE)]).await?;
    let delivery = bench.store.deliver_locally(SERVICE, 10, None).await?;
    must_eq!(
        (delivery.moved, delivery.report.duplicates),
        (1, 1),
        "moved, duplicates"
    );
    must_eq!(bench.claim(&["single"]).await?.len(), 1, "rows");
    Ok(())
}

async fn an_event_nobody_wants_leaves_the_outbox<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .publish(&[draft(&event("unheard", 1), SERVICE)])
        .await?;
    let delivery = bench.store.deliver_locally(SERVICE, 10, None).await?;
    must_eq!(
        (delivery.moved, delivery.report.dropped),
        (1, 1),
        "moved, dropped"
    );
    must_eq!(
        bench.store.deliver_locally(SERVICE, 10, None).await?.moved,
        0,
        "it is gone"
    );
    Ok(())
}

async fn an_id_waits_once_for_each_destination<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let message = event("noted", 1);
    let both = [draft(&message, SERVICE), draft(&message, BROKER)];
    must_eq!(bench.publish(&both).await?, [true, true], "new");
    must_eq!(bench.publish(&both).await?, [false, false], "again");
    must_eq!(
        bench.store.deliver_locally(SERVICE, 10, None).await?.moved,
        1,
        "moved"
    );
    must_eq!(
        Relay::new(&bench).claim(10).await?.len(),
        1,
        "rows for the broker"
    );
    Ok(())
}

async fn a_scheduled_message_waits_for_its_time<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let now = bench.now().await?;
    let drafts = [
        (1, Schedule::After(SECOND * 60)),
        (2, Schedule::At(now + SECOND * 60)),
        (3, Schedule::At(now - SECOND * 60)),
        (4, Schedule::After(Duration::ZERO)),
    ]
    .map(|(n, when)| OutboxDraft {
        when,
        ..draft(&event("noted", n), SERVICE)
    });
    bench.publish(&drafts).await?;
    must_eq!(
        bench.store.deliver_locally(SERVICE, 10, None).await?.moved,
        2,
        "due already"
    );
    bench.pass(SECOND * 30).await?;
    must_eq!(
        bench.store.deliver_locally(SERVICE, 10, None).await?.moved,
        0,
        "too early"
    );
    bench.pass(SECOND * 31).await?;
    must_eq!(
        bench.store.deliver_locally(SERVICE, 10, None).await?.moved,
        2,
        "due now"
    );
    Ok(())
}

async fn a_scheduled_message_can_be_cancelled_until_it_leaves<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let scheduled = event("noted", 1);
    let leaving = event("noted", 2);
    let later = |destination| OutboxDraft {
        when: Schedule::After(SECOND * 60),
        ..draft(&scheduled, destination)
    };
    let drafts = [later(SERVICE), later(BROKER), draft(&leaving, SERVICE)];
    bench.publish(&drafts).await?;
    must_eq!(
        bench.store.cancel_scheduled(&[leaving.id]).await?,
        0,
        "it is not scheduled"
    );
    must_eq!(
        bench.store.cancel_scheduled(&[scheduled.id]).await?,
        1,
        "messages, not rows"
    );
    must_eq!(
        bench.store.cancel_scheduled(&[scheduled.id]).await?,
        0,
        "again"
    );
    bench.pass(SECOND * 61).await?;
    must_eq!(
        bench.store.deliver_locally(SERVICE, 10, None).await?.moved,
        1,
        "only the other one"
    );
    must!(
        Relay::new(&bench).claim(10).await?.is_empty(),
        "nothing for the broker"
    );
    Ok(())
}

async fn what_has_left_for_one_destination_cannot_be_cancelled<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let message = event("noted", 1);
    let later = |destination| OutboxDraft {
        when: Schedule::After(SECOND * 60),
        ..draft(&message, destination)
    };
    bench.publish(&[later(SERVICE), later(BROKER)]).await?;
    bench.pass(SECOND * 61).await?;
    let moved = bench.store.deliver_locally(SERVICE, 10, None).await?.moved;
    must_eq!(moved, 1, "it has left for the own service");
    let cancelled = bench.store.cancel_scheduled(&[message.id]).await?;
    must_eq!(cancelled, 0, "it is too late");
    must_eq!(
        Relay::new(&bench).claim(10).await?.len(),
        1,
        "the broker gets it as well"
    );
    Ok(())
}

async fn a_row_stays_until_it_is_acknowledged<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .publish(&to_broker([(1, "a"), (2, ""), (3, "a")]))
        .await?;
    let relay = Relay::new(&bench);
    let rows = relay.claim(10).await?;
    must_eq!(outgoing(&rows), [1, 2, 3], "in order");
    must_eq!(
        outgoing(&relay.claim(10).await?),
        [1, 2, 3],
        "again, as nothing is acknowledged"
    );
    let (first, _) = rows.split_at(2.min(rows.len()));
    must_eq!(relay.acknowledge(first).await?, 2, "removed");
    must_eq!(relay.acknowledge(&rows).await?, 1, "removed");
    must!(relay.claim(10).await?.is_empty(), "nothing is left");
    must_eq!(relay.acknowledge(&rows).await?, 0, "unknown ids are fine");
    Ok(())
}

async fn one_instance_relays_at_a_time<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench.publish(&to_broker([(1, "a"), (2, "a")])).await?;
    let (one, other) = (Relay::new(&bench), Relay::new(&bench));
    must_eq!(one.claim(10).await?.len(), 2, "rows for the first");
    must!(other.claim(10).await?.is_empty(), "the first one relays");
    bench.pass(RELAY_LEASE / 2).await?;
    must_eq!(one.claim(10).await?.len(), 2, "it renews by claiming");
    bench.pass(RELAY_LEASE / 2 + SECOND).await?;
    must!(
        other.claim(10).await?.is_empty(),
        "the first one still relays"
    );
    bench.pass(RELAY_LEASE + SECOND).await?;
    must_eq!(other.claim(10).await?.len(), 2, "the lease ran out");
    must!(one.claim(10).await?.is_empty(), "the other one relays now");
    bench.store.release_relay(BROKER, one.instance).await?;
    must!(one.claim(10).await?.is_empty(), "it had nothing to release");
    bench.store.release_relay(BROKER, other.instance).await?;
    must_eq!(one.claim(10).await?.len(), 2, "released");
    Ok(())
}

async fn a_refusal_counts_from_the_relay_that_holds_the_lease_only<H: Harness>(
    harness: &H,
) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench.publish(&to_broker([(1, "a"), (2, "a")])).await?;
    let (one, other) = (Relay::new(&bench), Relay::new(&bench));
    let rows = one.claim(10).await?;
    must_eq!(rows.len(), 2, "rows for the first");
    bench.pass(RELAY_LEASE + SECOND).await?;
    must_eq!(other.claim(10).await?.len(), 2, "rows taken over");
    for row in &rows {
        for retry in [Some(SECOND * 60), None] {
            let refusal = Refusal {
                message_id: row.envelope.id,
                retry,
                error: "unroutable".to_owned(),
            };
            must!(!one.report(&refusal).await?, "it relays no more");
        }
    }
    must!(bench.dead().await?.is_empty(), "nothing died");
    let again = other.claim(10).await?;
    must_eq!(outgoing(&again), [1, 2], "rows");
    must!(again.iter().all(|row| row.attempts == 0), "no attempt");
    let [first, _] = again.as_slice() else {
        return Err(Violation::new("two rows were there a moment ago"));
    };
    other.refuse(first, Some(SECOND * 60)).await?;
    must!(other.claim(10).await?.is_empty(), "the stream waits");
    Ok(())
}

async fn the_first_sending_is_remembered<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench.publish(&to_broker([(1, "")])).await?;
    let relay = Relay::new(&bench);
    let first: Vec<_> = relay
        .claim(10)
        .await?
        .iter()
        .map(|row| row.envelope.headers.sent_at)
        .collect();
    must!(first.iter().all(Option::is_some), "sent at {first:?}");
    let again: Vec<_> = relay
        .claim(10)
        .await?
        .iter()
        .map(|row| row.envelope.headers.sent_at)
        .collect();
    must_eq!(again, first, "a second sending is no younger");
    Ok(())
}

async fn a_refused_row_holds_back_its_stream_only<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .publish(&to_broker([
            (1, "a"),
            (2, "b"),
            (3, "a"),
            (4, ""),
            (5, "a"),
        ]))
        .await?;
    let relay = Relay::new(&bench);
    let rows = relay.claim(10).await?;
    must_eq!(outgoing(&rows), [1, 2, 3, 4, 5], "in order");
    for row in rows
        .iter()
        .filter(|row| outgoing(std::slice::from_ref(row)) == [1])
    {
        relay.refuse(row, Some(SECOND * 10)).await?;
    }
    must_eq!(outgoing(&relay.claim(10).await?), [2, 4], "stream a waits");
    bench.publish(&to_broker([(6, "a"), (7, "b")])).await?;
    let rows = relay.claim(10).await?;
    must_eq!(outgoing(&rows), [2, 4, 7], "so do its later messages");
    relay.acknowledge(&rows).await?;
    bench.pass(SECOND * 11).await?;
    let mut order = Vec::new();
    for _ in 0..10 {
        let rows = relay.claim(1).await?;
        order.extend(outgoing(&rows));
        must!(
            rows.iter()
                .all(|row| (row.attempts == 1) == (outgoing(std::slice::from_ref(row)) == [1])),
            "refusals are counted"
        );
        relay.acknowledge(&rows).await?;
    }
    must_eq!(order, [1, 3, 5, 6], "stream a goes on in order");
    Ok(())
}

async fn a_row_refused_for_good_is_a_dead_letter_and_its_stream_goes_on<H: Harness>(
    harness: &H,
) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench.publish(&to_broker([(1, "a"), (2, "a")])).await?;
    let relay = Relay::new(&bench);
    for (place, retry) in [Some(SECOND), None].into_iter().enumerate() {
        let rows = relay.claim(10).await?;
        must_eq!(outgoing(&rows).first(), Some(&1), "round {place}");
        for row in rows.iter().take(1) {
            relay.refuse(row, retry).await?;
        }
        bench.pass(SECOND * 2).await?;
    }
    must_eq!(outgoing(&relay.claim(10).await?), [2], "the stream goes on");
    let letters = bench.dead().await?;
    must!(
        letters.len() == 1
            && letters.iter().all(|letter| letter.source == "outbox"
                && letter.reason == "refused"
                && letter.destination.as_deref() == Some(BROKER)
                && letter.attempts == 2
                && letter.error.as_deref() == Some("unroutable")),
        "the dead letter: {letters:?}"
    );
    let ids: Vec<_> = letters.iter().map(|letter| letter.id).collect();
    let requeued = bench.store.requeue(&ids).await?;
    must!(
        requeued.iter().all(|one| one.outcome == "requeued"),
        "{requeued:?}"
    );
    let mut order = Vec::new();
    for _ in 0..3 {
        let rows = relay.claim(10).await?;
        must!(
            rows.iter().all(|row| row.attempts == 0),
            "attempts are fresh"
        );
        order.extend(outgoing(&rows));
        relay.acknowledge(&rows).await?;
    }
    must_eq!(order, [2, 1], "it joins at the end");
    must!(bench.dead().await?.is_empty(), "no dead letter is left");
    Ok(())
}

async fn a_scheduled_message_joins_its_stream_when_it_falls_due<H: Harness>(
    harness: &H,
) -> Verdict {
    let bench = Bench::new(harness).await?;
    let scheduled = OutboxDraft {
        when: Schedule::After(SECOND * 60),
        ..draft(&in_stream("seen", 1, "a"), BROKER)
    };
    bench.publish(&[scheduled]).await?;
    bench.publish(&to_broker([(2, "a")])).await?;
    let relay = Relay::new(&bench);
    must_eq!(
        outgoing(&relay.claim(10).await?),
        [2],
        "it does not hold the stream"
    );
    bench.pass(SECOND * 61).await?;
    must_eq!(
        outgoing(&relay.claim(10).await?),
        [2, 1],
        "it joins at the end"
    );
    Ok(())
}

async fn an_acknowledged_row_is_removed_whoever_relays<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench.publish(&to_broker([(1, "")])).await?;
    let (one, other) = (Relay::new(&bench), Relay::new(&bench));
    let rows = one.claim(10).await?;
    bench.pass(RELAY_LEASE + SECOND).await?;
    must_eq!(other.claim(10).await?.len(), 1, "taken over");
    must_eq!(
        one.acknowledge(&rows).await?,
        1,
        "what the broker has, it has"
    );
    must!(other.claim(10).await?.is_empty(), "nothing is left");
    Ok(())
}
