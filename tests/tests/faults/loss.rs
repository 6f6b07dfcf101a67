//! F025, F026 and F035: nothing is lost between the broker and the end of a message.

use std::time::Duration;

use uuid::Uuid;
use whizbang::{BreakerPolicy, transport::Content};
use whizbang_tests::{
    FlakyTransport, Ping, Step, Stepped, World, note_stepped, scripted, wait_until,
};

use super::support::raw;

#[tokio::test]
async fn f025_a_breaker_that_trips_leaves_every_message_done() {
    const COUNT: i64 = 300;
    let world = World::new().await;
    for number in 100..140 {
        world.script.steps(number, [Step::Fail, Step::Fail]);
    }
    let app = world
        .service()
        .register::<note_stepped>()
        .breaker(Some(BreakerPolicy {
            failures: 5,
            cool_down: Duration::from_millis(30),
            longest_cool_down: Duration::from_millis(60),
        }))
        .configure(|config| config.max_attempts = 6)
        .start()
        .await
        .expect("start");
    for number in 0..COUNT {
        let stream = (number % 10).to_string();
        world.feed(&Stepped { stream, number });
    }
    world.quiet().await;
    for number in 0..COUNT {
        assert_eq!(world.effects("note_stepped", number).await, 1, "{number}");
    }
    let left = world
        .count("SELECT (SELECT count(*) FROM wh_inbox_streams) + (SELECT count(*) FROM wh_dead_letters)")
        .await;
    assert_eq!(left, 0, "no row in any state but done");
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f026_what_is_no_message_is_kept_with_its_bytes_and_a_reason() {
    let world = World::new().await;
    let broker = FlakyTransport::new("broker");
    let app = world
        .service()
        .intake(broker.clone())
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    let good = || raw(Uuid::now_v7(), &Ping { number: 1 });
    let odd = |change: fn(&mut whizbang::transport::RawMessage)| {
        let mut message = good();
        change(&mut message);
        Content::Message(Box::new(message))
    };
    let contents = [
        odd(|message| message.id = Uuid::nil()),
        odd(|message| message.message_type = String::new()),
        odd(|message| message.message_type = "with a space".into()),
        odd(|message| message.message_type = "x".repeat(10_000)),
        odd(|message| message.payload = Vec::new()),
        odd(|message| message.payload = vec![0xff, 0xfe, 0x00]),
        odd(|message| message.payload = b"{\"number\":".to_vec()),
        odd(|message| message.headers.traceparent = Some("a\0b".into())),
        Content::Poison {
            raw: b"\x00\xffno message".to_vec(),
            error: "no id and no type".into(),
        },
    ];
    let count = contents.len();
    for content in contents {
        broker.deliver(content);
        broker.deliver(Content::Message(Box::new(good())));
    }
    world
        .dead_letters(i64::try_from(count).expect("small"))
        .await;
    wait_until("everything is acknowledged", || async {
        broker.settled() == (2 * count, 0) && world.is_quiet().await
    })
    .await;
    let good = i64::try_from(count).expect("small");
    assert_eq!(world.effects("scripted", 1).await, good, "the others ran");
    let letters = app.dead_letters(0, 100).await.expect("list");
    for letter in &letters {
        assert_eq!(letter.reason, "undecodable");
        assert!(letter.error.is_some() && letter.raw.is_some(), "{letter:?}");
    }
    let kept: Vec<_> = letters
        .iter()
        .filter_map(|letter| letter.raw.clone())
        .collect();
    assert!(kept.contains(&vec![0xff, 0xfe, 0x00]));
    assert!(kept.contains(&b"\x00\xffno message".to_vec()));
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f035_a_full_disk_gives_messages_back_until_there_is_room() {
    let world = World::new().await;
    let broker = FlakyTransport::new("broker");
    sqlx::raw_sql("CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$; CREATE TRIGGER full_disk BEFORE INSERT ON wh_inbox FOR EACH STATEMENT EXECUTE FUNCTION full_disk()")
        .execute(&world.pool)
        .await
        .expect("a trigger");
    let app = world
        .service()
        .intake(broker.clone())
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    for number in 0..20 {
        let message = raw(Uuid::now_v7(), &Ping { number });
        broker.deliver(Content::Message(Box::new(message)));
    }
    wait_until("messages were given back", || async {
        broker.settled().1 >= 20
    })
    .await;
    assert_eq!(broker.settled().0, 0, "nothing is acknowledged");
    sqlx::raw_sql("DROP TRIGGER full_disk ON wh_inbox")
        .execute(&world.pool)
        .await
        .expect("room");
    wait_until("all are done", || async {
        broker.settled().0 == 20 && world.is_quiet().await
    })
    .await;
    assert_eq!(world.count("SELECT count(*) FROM effects").await, 20);
    assert_eq!(world.count("SELECT count(*) FROM wh_dead_letters").await, 0);
    app.shutdown().await.expect("shutdown");
}
