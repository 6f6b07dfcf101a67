//! Storing: each id once, one row for each subscribed handler.

use std::collections::HashSet;

use futures::future::try_join_all;

use super::{
    Harness, Verdict,
    bench::{Bench, command, event, in_stream, number, numbers},
    must, must_eq, topic,
};
use crate::{
    Envelope, Headers, Payload,
    store::{ClaimRequest, Poison, Store},
};

topic! {
    P1: a_message_is_stored_once_for_each_subscriber,
    P1: a_duplicate_in_the_same_batch_adds_nothing,
    P1: a_duplicate_in_a_later_batch_adds_nothing,
    P1: a_duplicate_of_a_completed_message_adds_nothing,
    P1: a_repeat_with_another_payload_is_a_conflict,
    P1: batches_in_opposite_orders_store_each_id_once,
    P1: an_event_nobody_wants_is_not_remembered,
    P8: a_command_nobody_handles_is_a_dead_letter_once,
    P12: payload_and_headers_come_back_as_they_were,
    P12: a_large_payload_reaches_every_handler,
    P12: poison_is_kept_with_its_bytes,
    P1: an_empty_batch_is_fine,
}

async fn a_message_is_stored_once_for_each_subscriber<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let message = event("seen", 1);
    let report = bench
        .store
        .store_inbox(std::slice::from_ref(&message), None)
        .await?;
    must_eq!((report.stored, report.waiting), (1, 2), "stored, waiting");
    must!(report.leased.is_empty(), "nothing was offered room");
    let works = bench.claim(&["one", "two", "single"]).await?;
    let handlers: HashSet<_> = works
        .iter()
        .map(|work| work.lease.handler.as_str())
        .collect();
    must_eq!(handlers, HashSet::from(["one", "two"]), "handlers");
    must!(
        works
            .iter()
            .all(|work| work.lease.message_id == message.id && work.attempts == 0),
        "rows are of the message and fresh"
    );
    Ok(())
}

async fn a_duplicate_in_the_same_batch_adds_nothing<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let message = event("noted", 1);
    let report = bench
        .store
        .store_inbox(&[message.clone(), event("noted", 2), message], None)
        .await?;
    must_eq!(
        (report.stored, report.duplicates),
        (2, 1),
        "stored, duplicates"
    );
    must_eq!(report.waiting, 2, "rows waiting");
    must!(report.conflicts.is_empty(), "the payload is the same");
    must_eq!(bench.claim(&["single"]).await?.len(), 2, "rows");
    Ok(())
}

async fn a_duplicate_in_a_later_batch_adds_nothing<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let message = in_stream("seen", 1, "a");
    bench.stored(std::slice::from_ref(&message)).await?;
    let again = bench.store.store_inbox(&[message], None).await?;
    must_eq!(
        (again.stored, again.duplicates),
        (0, 1),
        "stored, duplicates"
    );
    must_eq!(again.waiting, 0, "rows waiting");
    must_eq!(bench.claim(&["one"]).await?.len(), 1, "rows");
    Ok(())
}

async fn a_duplicate_of_a_completed_message_adds_nothing<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let message = event("noted", 1);
    bench.stored(std::slice::from_ref(&message)).await?;
    let work = bench.claim_one("single").await?;
    bench.complete(&work).await?;
    let offer = bench.hand_over(&["single"], 5);
    let again = bench.store.store_inbox(&[message], Some(&offer)).await?;
    must_eq!(
        (again.stored, again.duplicates),
        (0, 1),
        "stored, duplicates"
    );
    must!(again.leased.is_empty(), "a duplicate is not handed over");
    must_eq!(bench.claim(&["single"]).await?.len(), 0, "rows");
    Ok(())
}

async fn a_repeat_with_another_payload_is_a_conflict<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let first = event("noted", 1);
    let other = Envelope {
        id: first.id,
        ..event("noted", 2)
    };
    let same = Envelope {
        payload: Payload::from_stored("{ \"number\" : 1 }"),
        ..first.clone()
    };
    bench.stored(std::slice::from_ref(&first)).await?;
    let report = bench.store.store_inbox(&[other], None).await?;
    must_eq!(report.conflicts, [first.id], "conflicts");
    must_eq!(report.duplicates, 1, "a conflict is a duplicate");
    let report = bench.store.store_inbox(&[same], None).await?;
    must!(report.conflicts.is_empty(), "white space is no difference");
    must_eq!(
        numbers(&bench.claim(&["single"]).await?),
        [1],
        "the first payload counts"
    );
    Ok(())
}

async fn batches_in_opposite_orders_store_each_id_once<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let messages: Vec<_> = (0..60)
        .map(|n| in_stream("seen", n, &format!("s{}", n % 7)))
        .collect();
    let reversed: Vec<_> = messages.iter().rev().cloned().collect();
    let batches = [
        &messages, &reversed, &messages, &reversed, &messages, &reversed,
    ];
    let calls = batches.map(|batch| bench.store.store_inbox(batch, None));
    let reports = try_join_all(calls).await?;
    let stored: u64 = reports.iter().map(|report| report.stored).sum();
    let duplicates: u64 = reports.iter().map(|report| report.duplicates).sum();
    must_eq!((stored, duplicates), (60, 300), "stored, duplicates");
    let request = ClaimRequest {
        room: Bench::<H>::room(&["one"], 1000),
        limit: 1000,
        run: 1000,
        ..bench.request(&[])
    };
    let works = bench.store.claim(&request).await?;
    let ids: HashSet<_> = works.iter().map(|work| work.lease.message_id).collect();
    must_eq!((works.len(), ids.len()), (60, 60), "rows and ids");
    Ok(())
}

async fn an_event_nobody_wants_is_not_remembered<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let message = event("unheard", 1);
    let report = bench
        .store
        .store_inbox(std::slice::from_ref(&message), None)
        .await?;
    must_eq!((report.dropped, report.stored), (1, 0), "dropped, stored");
    let line = super::bench::lines(&[("late", "unheard", "late")]);
    bench.store.register(&bench.instance, &line).await?;
    bench.stored(&[message]).await?;
    Ok(())
}

async fn a_command_nobody_handles_is_a_dead_letter_once<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let lost = Envelope {
        message_type: "undo".to_owned(),
        ..command(7)
    };
    let report = bench
        .store
        .store_inbox(&[lost.clone(), command(1)], None)
        .await?;
    must_eq!(
        (report.unhandled, report.stored),
        (1, 1),
        "unhandled, stored"
    );
    let again = bench
        .store
        .store_inbox(std::slice::from_ref(&lost), None)
        .await?;
    must_eq!(
        (again.unhandled, again.duplicates),
        (0, 1),
        "unhandled, duplicates"
    );
    let dead = bench.dead().await?;
    must_eq!(dead.len(), 1, "dead letters");
    must!(
        dead.iter().all(|letter| letter.reason == "unhandled"
            && letter.source == "inbox"
            && letter.message_id == Some(lost.id)
            && letter.message_type.as_deref() == Some("undo")
            && letter.payload.as_deref().and_then(super::bench::number_in) == Some(7)),
        "the dead letter holds the message: {dead:?}"
    );
    Ok(())
}

async fn payload_and_headers_come_back_as_they_were<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let texts = [
        r#"{"text":"null \u0000 inside","half":"\ud800","emoji":"🦀","number":1}"#,
        r#"{"number":2,"huge":123456789012345678901234567890.5e-3, "dup":1, "dup":2}"#,
        r#""just a string""#,
        "null",
        "[[[[1]]]]",
    ];
    let headers = Headers {
        source: Some("els'where\"".to_owned()),
        traceparent: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_owned()),
        stream: Some("k\\é\u{1F980}\n".to_owned()),
        sent_at: None,
        headers: [("a'b".to_owned(), "c\"d\\".to_owned())].into(),
    };
    for text in texts {
        let message = Envelope {
            payload: Payload::from_stored(text),
            headers: headers.clone(),
            correlation_id: Some(uuid::Uuid::now_v7()),
            causation_id: Some(uuid::Uuid::now_v7()),
            ..event("noted", 0)
        };
        bench.stored(std::slice::from_ref(&message)).await?;
        let work = bench.claim_one("single").await?;
        must_eq!(work.payload.as_str(), text, "payload");
        must_eq!(work.headers, headers, "headers");
        must_eq!(work.message_type, "noted", "message type");
        must_eq!(work.correlation_id, message.correlation_id, "correlation");
        must_eq!(work.causation_id, message.causation_id, "causation");
        must!(work.received_at.is_some(), "it is known when it arrived");
        bench.complete(&work).await?;
    }
    Ok(())
}

async fn a_large_payload_reaches_every_handler<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let bulk = "x".repeat(300_000);
    let message = Envelope {
        payload: Payload::from_stored(format!("{{\"number\":5,\"bulk\":\"{bulk}\"}}")),
        ..event("seen", 0)
    };
    bench.stored(std::slice::from_ref(&message)).await?;
    for handler in ["one", "two"] {
        let work = bench.claim_one(handler).await?;
        must_eq!(work.payload, message.payload, "payload for `{handler}`");
        bench.complete(&work).await?;
    }
    bench.stored(&[event("seen", 6)]).await?;
    let work = bench.claim_one("one").await?;
    must_eq!(number(&work), 6, "the next message has its own payload");
    Ok(())
}

async fn poison_is_kept_with_its_bytes<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let raw = vec![0, 255, 17, b'{'];
    let poison = Poison {
        message_id: None,
        message_type: Some("noted".to_owned()),
        raw: raw.clone(),
        headers: Headers::default(),
        reason: "undecodable",
        error: "not JSON".to_owned(),
    };
    let other = Poison {
        message_id: Some(uuid::Uuid::now_v7()),
        message_type: None,
        ..poison.clone()
    };
    bench.store.store_poison(&[poison, other.clone()]).await?;
    let dead = bench.dead().await?;
    must_eq!(dead.len(), 2, "dead letters");
    must!(
        dead.iter().all(|letter| letter.source == "transport"
            && letter.raw.as_ref() == Some(&raw)
            && letter.reason == "undecodable"
            && letter.error.as_deref() == Some("not JSON")),
        "the bytes are kept: {dead:?}"
    );
    let ids: Vec<_> = dead.iter().map(|letter| letter.message_id).collect();
    must_eq!(ids, [None, other.message_id], "ids");
    let ids: Vec<_> = dead.iter().map(|letter| letter.id).collect();
    let requeued = bench.store.requeue(&ids).await?;
    must!(
        requeued.len() == 2 && requeued.iter().all(|one| one.outcome == "not_requeueable"),
        "bytes are no message to requeue: {requeued:?}"
    );
    must_eq!(bench.dead().await?.len(), 2, "they stay");
    Ok(())
}

async fn an_empty_batch_is_fine<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let offer = bench.hand_over(&["one"], 5);
    let report = bench.store.store_inbox(&[], Some(&offer)).await?;
    must_eq!(report.stored, 0, "stored");
    must!(bench.store.report(&[]).await?.is_empty(), "no reports");
    must!(
        bench.store.complete_batch(&[]).await?.is_empty(),
        "no completions"
    );
    must!(
        bench
            .store
            .renew(&[], super::bench::LEASE)
            .await?
            .is_empty(),
        "no leases"
    );
    bench.store.close_streams(&[]).await?;
    bench.store.store_poison(&[]).await?;
    must!(bench.store.requeue(&[]).await?.is_empty(), "no requeues");
    must_eq!(bench.store.discard_dead_letters(&[]).await?, 0, "discarded");
    must_eq!(bench.store.cancel_scheduled(&[]).await?, 0, "cancelled");
    Ok(())
}
