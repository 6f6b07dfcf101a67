//! What a store makes of a message: rows, their order, shared payloads, and what is handed over.

use uuid::Uuid;

use crate::support::{
    Claim, Db, EXPIRE, Message, Offer, Outcome, claim, claim_h, complete, ids, put, report, store,
};

#[tokio::test]
async fn rows_are_handed_over_up_to_the_room_of_each_handler() -> Outcome {
    let db = Db::new().await?;
    db.subscribe("h", "l").await?;
    db.subscribe("g", "m").await?;
    let mut connection = db.connect().await?;
    let offer = Offer {
        token: Uuid::now_v7(),
        room: &[("h", 2)],
    };
    let messages: Vec<_> = (0..5).map(|_| Message::new()).collect();
    let stored = store(&mut connection, &messages, Some(&offer)).await?;
    let leased: Vec<_> = stored.iter().filter(|one| one.leased).collect();
    assert_eq!(leased.len(), 2);
    assert!(
        leased
            .iter()
            .all(|one| one.handler_name.as_deref() == Some("h"))
    );
    let waiting = claim(&mut connection, &Claim::by(&[("h", "l"), ("g", "m")])).await?;
    assert_eq!(
        waiting.len(),
        8,
        "what was not handed over is claimed, and nothing else"
    );
    let leased: Vec<_> = leased.iter().map(|one| one.message_id).collect();
    assert!(
        waiting
            .iter()
            .all(|one| one.handler != "h" || !leased.contains(&one.id))
    );
    Ok(())
}

#[tokio::test]
async fn a_stream_is_handed_over_from_its_head_only() -> Outcome {
    let db = Db::new().await?;
    db.subscribe("h", "l").await?;
    let mut connection = db.connect().await?;
    let offer = |token| Offer {
        token,
        room: &[("h", 10)],
    };
    let stream = Uuid::now_v7();
    let batch = [
        Message::of(stream),
        Message::of(stream),
        Message::of(stream),
    ];
    let token = Uuid::now_v7();
    let stored = store(&mut connection, &batch, Some(&offer(token))).await?;
    assert!(
        stored.iter().all(|one| one.leased),
        "nothing waited before the batch"
    );
    let holder: Uuid = db.value("SELECT lease_token FROM wh_inbox_streams").await?;
    assert_eq!(holder, token);
    let behind = Message::of(stream);
    let stored = store(
        &mut connection,
        std::slice::from_ref(&behind),
        Some(&offer(Uuid::now_v7())),
    )
    .await?;
    assert!(!stored[0].leased, "the stream is at work");
    let holder: Uuid = db.value("SELECT lease_token FROM wh_inbox_streams").await?;
    assert_eq!(holder, token);
    assert_eq!(claim_h(&mut connection).await?.len(), 0);
    db.run(EXPIRE).await?;
    let mut all: Vec<_> = batch.iter().map(|one| one.id).collect();
    all.push(behind.id);
    assert_eq!(ids(&claim_h(&mut connection).await?), all);
    Ok(())
}

#[tokio::test]
async fn a_lane_is_handed_over_only_with_a_listed_handler_at_its_head() -> Outcome {
    let db = Db::new().await?;
    db.subscribe_to("a", "both", "first").await?;
    db.subscribe_to("b", "both", "second").await?;
    let mut connection = db.connect().await?;
    let message = |kind, stream| Message {
        kind,
        ..Message::of(stream)
    };
    let (one, two) = (Uuid::now_v7(), Uuid::now_v7());
    let batch = [
        message("first", one),
        message("second", one),
        message("second", two),
        message("first", two),
        message("second", two),
    ];
    let offer = Offer {
        token: Uuid::now_v7(),
        room: &[("b", 10)],
    };
    let stored = store(&mut connection, &batch, Some(&offer)).await?;
    let leased: Vec<_> = stored
        .iter()
        .filter(|row| row.leased)
        .map(|row| row.message_id)
        .collect();
    assert_eq!(
        leased,
        [batch[2].id],
        "up to the first row of a handler that is not listed"
    );
    Ok(())
}

#[tokio::test]
async fn sequences_follow_the_order_of_the_batch() -> Outcome {
    let db = Db::new().await?;
    db.subscribe("h", "l").await?;
    let mut connection = db.connect().await?;
    let stream = Uuid::now_v7();
    let batch: Vec<_> = (0..300).map(|_| Message::of(stream)).collect();
    let mut shuffled = batch.clone();
    shuffled.sort_by_key(|one| one.id.as_u128().reverse_bits());
    let stored = store(&mut connection, &shuffled, None).await?;
    let mut by_sequence = stored;
    by_sequence.sort_by_key(|one| one.sequence);
    let order: Vec<_> = by_sequence.iter().map(|one| one.message_id).collect();
    assert_eq!(order, shuffled.iter().map(|one| one.id).collect::<Vec<_>>());
    Ok(())
}

#[tokio::test]
async fn a_large_payload_of_several_handlers_is_stored_once_and_the_last_one_removes_it() -> Outcome
{
    let db = Db::new().await?;
    db.subscribe("h", "l").await?;
    db.subscribe("g", "m").await?;
    let mut connection = db.connect().await?;
    let large = Message {
        data: format!("{{\"a\":\"{}\"}}", "x".repeat(5000)),
        ..Message::new()
    };
    put(&mut connection, &[large.clone(), Message::new()]).await?;
    assert_eq!(
        db.value::<i64>("SELECT count(*) FROM wh_inbox_payloads")
            .await?,
        1
    );
    let both = Claim::by(&[("h", "l"), ("g", "m")]);
    let works = claim(&mut connection, &both).await?;
    assert_eq!(works.len(), 4);
    let of_large: Vec<_> = works.iter().filter(|work| work.id == large.id).collect();
    assert!(of_large.iter().all(|work| work.data == large.data));
    assert_eq!(complete(&mut connection, of_large[0], true).await?, "done");
    assert_eq!(
        db.value::<i64>("SELECT count(*) FROM wh_inbox_payloads")
            .await?,
        1
    );
    assert_eq!(
        report(&mut connection, of_large[1], "dead", 0.0).await?,
        "dead"
    );
    assert_eq!(
        db.value::<i64>("SELECT count(*) FROM wh_inbox_payloads")
            .await?,
        0
    );
    let letter: String = db
        .value("SELECT event_data::text FROM wh_dead_letters")
        .await?;
    assert_eq!(letter, large.data);
    Ok(())
}

#[tokio::test]
async fn text_that_only_json_takes_goes_through_unharmed() -> Outcome {
    let db = Db::new().await?;
    db.subscribe("h", "l").await?;
    let mut connection = db.connect().await?;
    let odd = Message {
        data: r#"{"nul":"\u0000","lone":"\ud800","twice":1,"twice":2}"#.to_owned(),
        ..Message::of(Uuid::now_v7())
    };
    put(&mut connection, std::slice::from_ref(&odd)).await?;
    let works = claim_h(&mut connection).await?;
    assert_eq!(works[0].data, odd.data);
    assert_eq!(
        report(&mut connection, &works[0], "dead", 0.0).await?,
        "dead"
    );
    Ok(())
}
