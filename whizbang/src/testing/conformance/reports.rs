//! Rows that did not complete: retry, snooze, release, dead letter.

use super::{
    Harness, Verdict,
    bench::{
        Bench, LEASE, SECOND, command, dead, event, in_stream, number, number_in, numbers, report,
    },
    must, must_eq, topic,
};
use crate::store::{Action, Store};

topic! {
    P6: a_retry_counts_and_is_due_after_its_delay,
    P6: a_snooze_counts_nothing,
    P8: a_release_counts_nothing_and_is_due_at_once,
    P6: a_dead_letter_holds_everything,
    P5: a_stream_goes_on_after_a_dead_letter,
    P5: a_parked_stream_waits,
    P3: a_repeated_report_finds_nothing,
    P5: several_reports_on_one_stream_all_count,
    P12: any_error_text_can_be_reported,
    P8: a_report_on_a_completed_row_frees_its_stream,
}

async fn a_retry_counts_and_is_due_after_its_delay<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[event("noted", 1), in_stream("seen", 2, "a")])
        .await?;
    for attempt in 1..=3 {
        let works = bench.claim(&["single", "one"]).await?;
        must_eq!(works.len(), 2, "rows of attempt {attempt}");
        for work in &works {
            must_eq!(work.attempts, attempt - 1, "failed attempts");
            must!(
                bench
                    .report(&work.lease, Action::Retry(SECOND * 10))
                    .await?,
                "the lease holds"
            );
        }
        bench.pass(SECOND * 5).await?;
        must!(
            bench.claim(&["single", "one"]).await?.is_empty(),
            "not before its time"
        );
        bench.pass(SECOND * 6).await?;
    }
    Ok(())
}

async fn a_snooze_counts_nothing<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[
            event("noted", 1),
            in_stream("seen", 2, "a"),
            in_stream("seen", 3, "a"),
        ])
        .await?;
    for work in bench
        .claim(&["single", "one"])
        .await?
        .iter()
        .filter(|work| number(work) != 3)
    {
        must!(
            bench
                .report(&work.lease, Action::Snooze(SECOND * 10))
                .await?,
            "the lease holds"
        );
    }
    must!(
        bench.claim(&["single", "one"]).await?.is_empty(),
        "not before its time"
    );
    bench.pass(SECOND * 11).await?;
    let works = bench.claim(&["single", "one"]).await?;
    must_eq!(works.len(), 3, "rows");
    must!(
        works
            .iter()
            .all(|work| (work.attempts, work.losses) == (0, 0)),
        "nothing is counted: {works:?}"
    );
    Ok(())
}

async fn a_release_counts_nothing_and_is_due_at_once<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[event("noted", 1), in_stream("seen", 2, "a")])
        .await?;
    for _ in 0..3 {
        let works = bench.claim(&["single", "one"]).await?;
        must_eq!(works.len(), 2, "rows");
        for work in works {
            must_eq!((work.attempts, work.losses), (0, 0), "attempts, losses");
            must!(
                bench.report(&work.lease, Action::Release).await?,
                "the lease holds"
            );
        }
    }
    Ok(())
}

async fn a_dead_letter_holds_everything<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[command(7), in_stream("seen", 8, "a")])
        .await?;
    let works = bench.claim(&["act", "one"]).await?;
    for work in &works {
        must!(
            bench.report(&work.lease, dead(false)).await?,
            "the lease holds"
        );
    }
    let letters = bench.dead().await?;
    must_eq!(letters.len(), 2, "dead letters");
    for work in &works {
        let letter = letters
            .iter()
            .find(|letter| letter.message_id == Some(work.lease.message_id));
        must!(
            letter.is_some_and(|letter| letter.source == "inbox"
                && letter.handler.as_deref() == Some(work.lease.handler.as_str())
                && letter.message_type.as_deref() == Some(work.message_type.as_str())
                && letter.payload.as_deref().and_then(number_in) == Some(number(work))
                && letter.attempts == 1
                && letter.reason == "failed"
                && letter.error.as_deref() == Some("the check says so")
                && !letter.parked),
            "the dead letter of {}: {letter:?}",
            work.lease.handler
        );
    }
    must!(
        bench.claim(&["act", "one"]).await?.is_empty(),
        "they do not run any more"
    );
    must_eq!(
        bench.claim(&["two"]).await?.len(),
        1,
        "other handlers are not concerned"
    );
    let first = letters.first().map_or(0, |letter| letter.id);
    must_eq!(
        bench.store.dead_letters(first, 10).await?.len(),
        1,
        "the next page"
    );
    must_eq!(
        bench.store.dead_letters(0, 1).await?.len(),
        1,
        "a page of one"
    );
    Ok(())
}

async fn a_stream_goes_on_after_a_dead_letter<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[in_stream("seen", 1, "a"), in_stream("seen", 2, "a")])
        .await?;
    for work in bench.claim(&["one"]).await?.iter().take(1) {
        must!(
            bench.report(&work.lease, dead(false)).await?,
            "the lease holds"
        );
    }
    must_eq!(numbers(&bench.claim(&["one"]).await?), [2], "the rest");
    Ok(())
}

async fn a_parked_stream_waits<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[
            in_stream("seen", 1, "a"),
            in_stream("seen", 2, "a"),
            in_stream("seen", 3, "b"),
        ])
        .await?;
    for work in bench
        .claim(&["one"])
        .await?
        .iter()
        .filter(|work| number(work) != 2)
    {
        let action = if number(work) == 1 {
            dead(true)
        } else {
            Action::Release
        };
        must!(bench.report(&work.lease, action).await?, "the lease holds");
    }
    bench
        .stored(&[in_stream("seen", 4, "a"), in_stream("seen", 5, "b")])
        .await?;
    must_eq!(
        numbers(&bench.claim(&["one"]).await?),
        [3, 5],
        "stream b goes on"
    );
    bench.pass(LEASE * 10).await?;
    must_eq!(
        numbers(&bench.claim(&["one"]).await?),
        [3, 5],
        "stream a waits however long"
    );
    let parked: Vec<_> = bench
        .dead()
        .await?
        .iter()
        .map(|letter| letter.parked)
        .collect();
    must_eq!(parked, [true], "the dead letter says so");
    Ok(())
}

async fn a_repeated_report_finds_nothing<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[event("noted", 1), in_stream("seen", 2, "a")])
        .await?;
    for work in bench.claim(&["single", "one"]).await? {
        must!(
            bench.report(&work.lease, Action::Retry(SECOND)).await?,
            "the first"
        );
        must!(
            !bench.report(&work.lease, Action::Retry(SECOND)).await?,
            "the second"
        );
        must!(
            !bench.report(&work.lease, dead(false)).await?,
            "a third, of another kind"
        );
    }
    bench.pass(SECOND * 2).await?;
    let attempts: Vec<_> = bench
        .claim(&["single", "one"])
        .await?
        .iter()
        .map(|work| work.attempts)
        .collect();
    must_eq!(attempts, [1, 1], "attempts");
    Ok(())
}

async fn several_reports_on_one_stream_all_count<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[in_stream("seen", 1, "a"), in_stream("seen", 2, "a")])
        .await?;
    let works = bench.claim(&["one"]).await?;
    let reports: Vec<_> = works
        .iter()
        .map(|work| report(&work.lease, Action::Retry(SECOND)))
        .collect();
    must_eq!(bench.store.report(&reports).await?, [true, true], "held");
    bench.pass(SECOND * 2).await?;
    let works = bench.claim(&["one"]).await?;
    must_eq!(numbers(&works), [1, 2], "order");
    must!(
        works.iter().all(|work| work.attempts == 1),
        "both attempts count: {works:?}"
    );
    Ok(())
}

async fn any_error_text_can_be_reported<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    let texts = [
        "it's \"bad\"\\ \n\t\u{7f}\u{1F980} {}".to_owned(),
        "x".repeat(crate::MAX_ERROR_BYTES),
        crate::storable_text("a\0b".repeat(20_000)),
        String::new(),
    ];
    for (place, text) in texts.iter().enumerate() {
        bench.stored(&[event("noted", 1)]).await?;
        let work = bench.claim_one("single").await?;
        let report = crate::store::Report {
            error: Some(text.clone()),
            ..report(&work.lease, dead(false))
        };
        must_eq!(bench.store.report(&[report]).await?, [true], "text {place}");
    }
    let kept: Vec<_> = bench
        .dead()
        .await?
        .into_iter()
        .filter_map(|letter| letter.error)
        .collect();
    must_eq!(kept, texts, "the texts are kept");
    Ok(())
}

async fn a_report_on_a_completed_row_frees_its_stream<H: Harness>(harness: &H) -> Verdict {
    let bench = Bench::new(harness).await?;
    bench
        .stored(&[in_stream("seen", 1, "a"), in_stream("seen", 2, "a")])
        .await?;
    let works = bench.claim(&["one"]).await?;
    for work in works.iter().take(1) {
        // The commit went through and its answer was lost, so the run gives the row back.
        bench.run(&work.lease, "effect", false).await?;
        must!(
            !bench.report(&work.lease, Action::Release).await?,
            "the row is gone"
        );
    }
    must_eq!(
        numbers(&bench.claim(&["one"]).await?),
        [2],
        "the stream goes on at once"
    );
    bench.must_be_written(&["effect"]).await?;
    Ok(())
}
