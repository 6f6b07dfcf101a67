//! F130, F143, F194, F226 and F227: input that is meant to break things, and settings that are.

use std::time::Duration;

use uuid::Uuid;
use whizbang::{Backoff, Envelope, PublishError, RuntimeConfig, StartError, transport::Content};
use whizbang_tests::{
    FlakyTransport, Ping, Step, Stepped, World, note_stepped, scripted, wait_until,
};

use super::support::raw;

const ODD: &[&str] = &[
    "with,comma",
    "with\nnewline",
    "\u{1F600} \u{202e}right to left",
    "'; DROP TABLE wh_inbox; --",
    "%s {0} $1 \\u0000 \\",
];

#[tokio::test]
async fn f130_nul_is_carried_in_payloads_and_refused_elsewhere() {
    let world = World::new().await;
    world.script.steps(2, [Step::HugeError]);
    let app = world
        .service()
        .register::<note_stepped>()
        .start()
        .await
        .expect("start");
    let dispatcher = app.dispatcher();
    let mut tx = world.pool.begin().await.expect("begin");
    // In JSON a NUL is an escape: the text is kept as it is, stream key included.
    let body = Stepped {
        stream: "a\0b".into(),
        number: 1,
    };
    dispatcher.publish(&mut tx, &body).await.expect("publish");
    for (name, value) in [("na\0me", "value"), ("name", "val\0ue")] {
        let refused = dispatcher.publish(&mut tx, &body).header(name, value).await;
        assert!(
            matches!(refused, Err(PublishError::Header { .. })),
            "{refused:?}"
        );
    }
    // An error text with NUL is recorded all the same.
    let failing = Stepped {
        stream: "c".into(),
        number: 2,
    };
    dispatcher
        .publish(&mut tx, &failing)
        .await
        .expect("publish");
    tx.commit().await.expect("the transaction is not harmed");
    world.quiet().await;
    assert_eq!(world.effects("note_stepped", 2).await, 1);
    // The effects table of this test cannot hold the NUL, which is the handler's own failure.
    world.dead_letters(1).await;
    let letters = app.dead_letters(0, 10).await.expect("list");
    let kept = letters[0].payload.clone().expect("the payload");
    let read: Stepped = serde_json::from_str(&kept).expect("intact");
    assert_eq!(read, body);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f130_a_nul_in_a_panic_is_no_second_failure() {
    let world = World::new().await;
    let store = super::support::store_after(&world, world.service().register::<scripted>()).await;
    use whizbang::store::{Action, Report, Store};
    let message = super::support::envelope(Uuid::now_v7(), &Ping { number: 1 });
    store.store_inbox(&[message], None).await.expect("store");
    let lease = super::support::claim(&store, "scripted", 1)
        .await
        .remove(0)
        .lease;
    let report = Report {
        lease,
        action: Action::Retry(Duration::ZERO),
        error: Some(whizbang::storable_text("pa\0nic".repeat(10_000))),
    };
    assert_eq!(store.report(&[report]).await.expect("report"), [true]);
}

#[tokio::test]
async fn f143_odd_names_of_streams_destinations_and_headers_come_back_unchanged() {
    let world = World::new().await;
    let out = FlakyTransport::new("with,comma \u{1F600}");
    let app = world
        .service()
        .transport(out.clone())
        .register::<note_stepped>()
        .start()
        .await
        .expect("start");
    let dispatcher = app.dispatcher();
    let long = "é".repeat(500);
    let names: Vec<&str> = ODD.iter().copied().chain([long.as_str()]).collect();
    for (number, name) in (0..).zip(&names) {
        let mut tx = world.pool.begin().await.expect("begin");
        let step = Stepped {
            stream: (*name).to_owned(),
            number,
        };
        dispatcher
            .publish(&mut tx, &step)
            .header(*name, *name)
            .await
            .expect("publish");
        tx.commit().await.expect("commit");
    }
    world.quiet().await;
    let sent = out.accepted();
    assert_eq!(sent.len(), names.len());
    for (envelope, name) in sent.iter().zip(&names) {
        let stream = envelope.stream.as_ref().expect("a stream");
        assert_eq!(stream.label(), *name);
        let headers = &envelope.headers.headers;
        assert_eq!(headers.get(*name).map(String::as_str), Some(*name));
        let here: i64 = sqlx::query_scalar("SELECT count(*) FROM effects WHERE stream = $1")
            .bind(*name)
            .fetch_one(&world.pool)
            .await
            .expect("a count");
        assert_eq!(here, 1, "{name}");
    }
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f194_settings_that_make_no_sense_are_refused_and_extreme_ones_work() {
    let world = World::new().await;
    let broken: &[fn(&mut RuntimeConfig)] = &[
        |config| config.concurrency = Some(0),
        |config| config.concurrency = Some(usize::MAX),
        |config| config.max_attempts = 0,
        |config| config.handler_timeout = Duration::ZERO,
        |config| config.lease = Duration::ZERO,
        |config| config.heartbeat = Duration::ZERO,
        |config| config.dead_after = Duration::ZERO,
        |config| config.claim_batch = 0,
        |config| config.stream_run = 0,
        |config| config.idle_poll = Duration::ZERO,
        |config| config.relay_batch = 0,
        |config| config.relay_lease = Duration::ZERO,
        |config| config.intake_batch = 0,
        |config| config.message_limit = 0,
        |config| {
            config.backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(1));
        },
    ];
    for (number, change) in broken.iter().enumerate() {
        let started = world
            .service()
            .configure(change)
            .register::<scripted>()
            .start()
            .await;
        assert!(
            matches!(started, Err(StartError::Faults(_))),
            "setting {number} was taken"
        );
    }
    for name in ["", " ", "a b", "a\0b", &"x".repeat(201)] {
        let started = world.service().service(name).register::<scripted>().start();
        assert!(
            matches!(started.await, Err(StartError::Faults(_))),
            "{name}"
        );
    }
    let longest = |config: &mut RuntimeConfig| {
        config.max_attempts = u32::MAX;
        config.backoff = Backoff::new(Duration::ZERO, Duration::MAX);
        config.handler_timeout = Duration::MAX;
        config.claim_batch = 1_000_000;
        config.stream_run = usize::MAX;
        config.relay_batch = usize::MAX;
        config.intake_batch = usize::MAX;
        config.message_limit = usize::MAX;
        config.lease = Duration::from_secs(u64::MAX / 4);
        config.dead_after = Duration::MAX;
        config.relay_lease = Duration::MAX;
        config.execute_wait = Duration::MAX;
        config.shutdown_deadline = Duration::from_secs(60);
    };
    let shortest = |config: &mut RuntimeConfig| {
        config.claim_batch = 1;
        config.stream_run = 1;
        config.relay_batch = 1;
        config.intake_batch = 1;
        config.max_attempts = 1;
        config.backoff = Backoff::new(Duration::ZERO, Duration::ZERO);
        config.idle_poll = Duration::from_millis(1);
    };
    world.script.steps(0, [Step::Succeed]);
    for (number, extreme) in [
        (0, Box::new(longest) as Box<dyn Fn(&mut RuntimeConfig)>),
        (1, Box::new(shortest)),
    ] {
        let out = FlakyTransport::new("out");
        let app = world
            .service()
            .transport(out.clone())
            .configure(extreme)
            .register::<scripted>()
            .start()
            .await
            .expect("start");
        world.feed(&Ping { number });
        world.quiet().await;
        assert_eq!(world.effects("scripted", number).await, 1, "{number}");
        assert_eq!(out.accepted().len(), 1);
        app.shutdown().await.expect("shutdown");
    }
}

#[tokio::test]
async fn f226_a_sender_cannot_speak_in_our_name() {
    let world = World::new().await;
    world.script.steps(1, [Step::Fail]);
    let broker = FlakyTransport::new("broker");
    let app = world
        .service()
        .intake(broker.clone())
        .register::<scripted>()
        .start()
        .await
        .expect("start");
    let id = Uuid::now_v7();
    for lie in ["first", "second"] {
        let mut message = raw(id, &Ping { number: 1 });
        for name in [
            "message_id",
            "id",
            "attempts",
            "attempt",
            "stream",
            "source",
            "handler",
        ] {
            let headers = &mut message.headers.headers;
            headers.insert(name.into(), format!("{lie} {}", Uuid::now_v7()));
        }
        broker.deliver(Content::Message(Box::new(message)));
    }
    wait_until("both are settled", || async {
        broker.settled().0 == 2 && world.is_quiet().await
    })
    .await;
    // The id is the transport's, whatever the headers say, and so is everything else.
    assert_eq!(world.effects("scripted", 1).await, 1);
    assert_eq!(world.script.calls(1), 2);
    assert_eq!(app.counts().duplicates, 1);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn f227_types_and_payloads_out_of_bounds_are_kept_and_never_run() {
    let world = World::new().await;
    let broker = FlakyTransport::new("broker");
    let app = world
        .service()
        .intake(broker.clone())
        .register::<scripted>()
        .configure(|config| config.message_limit = 100_000)
        .start()
        .await
        .expect("start");
    let with = |change: &dyn Fn(&mut whizbang::transport::RawMessage)| {
        let mut message = raw(Uuid::now_v7(), &Ping { number: 1 });
        change(&mut message);
        broker.deliver(Content::Message(Box::new(message)));
    };
    let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
    with(&|message| message.payload = deep.clone().into_bytes());
    with(&|message| message.payload = format!("\"{}\"", "x".repeat(100_000)).into_bytes());
    with(&|message| message.message_type = "x".repeat(10_240));
    world.dead_letters(3).await;
    // Names that mean something elsewhere are names that nobody here has.
    for name in [
        "std::process::Command",
        "Vec<Ping>",
        "../../ping",
        "tests.ping%00",
    ] {
        with(&|message| message.message_type = name.to_owned());
    }
    wait_until("they are settled", || async {
        broker.settled() == (7, 0) && world.is_quiet().await
    })
    .await;
    assert_eq!(world.count("SELECT count(*) FROM effects").await, 0);
    assert_eq!(app.counts().dropped, 4);
    let mut large = Envelope::new(&Ping { number: 1 }).expect("encode");
    large.headers.headers.insert("h".into(), "x".repeat(10));
    broker.deliver(Content::Message(Box::new(
        whizbang::transport::RawMessage::from_envelope(&large),
    )));
    wait_until("the service goes on", || async {
        world.effects("scripted", 1).await == 1
    })
    .await;
    app.shutdown().await.expect("shutdown");
}
