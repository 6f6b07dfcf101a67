//! Deliveries that are no messages, or messages that nobody can read.

use uuid::Uuid;
use whizbang::transport::RawMessage;
use whizbang_tests::{Pay, Ping, World, wait_until};

use super::support::{ATTEMPTS, LIMIT, goes_on, letters, raw, start};

/// Ends as a dead letter that keeps the bytes, without any attempt.
async fn is_kept_as_bytes(message: RawMessage, told: &str) {
    let world = World::new().await;
    let app = start(&world).await;
    world.transport.deliver(message.clone());
    let letters = letters(&world, &app, 1).await;
    let letter = &letters[0];
    assert_eq!(
        (letter.source.as_str(), letter.reason.as_str()),
        ("transport", "undecodable")
    );
    assert_eq!(letter.raw.as_deref(), Some(message.payload.as_slice()));
    assert_eq!(letter.attempts, 0);
    let known = Some(message.id).filter(|id| !id.is_nil());
    assert_eq!(letter.message_id, known);
    let error = letter.error.clone().unwrap_or_default();
    assert!(error.contains(told), "{error}");
    goes_on(&world).await;
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn broken_json() {
    is_kept_as_bytes(raw("tests.ping", r#"{"number":"#), "is not JSON").await;
}

#[tokio::test]
async fn an_empty_payload() {
    is_kept_as_bytes(raw("tests.ping", ""), "is not JSON").await;
}

#[tokio::test]
async fn bytes_that_are_not_utf8() {
    is_kept_as_bytes(raw("tests.ping", [b'"', 0xff, b'"']), "is not UTF-8").await;
}

#[tokio::test]
async fn a_payload_over_the_limit() {
    let long = format!(r#"{{"number":1,"more":"{}"}}"#, "x".repeat(LIMIT));
    is_kept_as_bytes(raw("tests.ping", long), "the limit is 2000").await;
}

#[tokio::test]
async fn a_payload_nested_too_deeply() {
    let deep = format!("{}{}", "[".repeat(150), "]".repeat(150));
    is_kept_as_bytes(raw("tests.ping", deep), "nested 150 levels deep").await;
}

#[tokio::test]
async fn the_nil_id() {
    let mut message = raw("tests.ping", r#"{"number":1}"#);
    message.id = Uuid::nil();
    is_kept_as_bytes(message, "nil UUID").await;
}

#[tokio::test]
async fn a_type_that_is_no_name() {
    for (name, told) in [("", "is empty"), ("tests ping", "white space")] {
        is_kept_as_bytes(raw(name, r#"{"number":1}"#), told).await;
    }
}

#[tokio::test]
async fn a_header_with_a_nul_character() {
    let mut message = raw("tests.ping", r#"{"number":1}"#);
    let headers = &mut message.headers.headers;
    headers.insert("tenant".to_owned(), "a\0b".to_owned());
    is_kept_as_bytes(message, "NUL").await;
}

#[tokio::test]
async fn bytes_without_id_and_type() {
    let world = World::new().await;
    let app = start(&world).await;
    world
        .transport
        .deliver_poison(b"\0\x01garbage".to_vec(), "no header says what it is");
    let letters = letters(&world, &app, 1).await;
    assert_eq!(letters[0].raw.as_deref(), Some(&b"\0\x01garbage"[..]));
    assert_eq!(letters[0].message_id, None);
    let requeued = app.requeue(&[letters[0].id]).await.expect("requeue");
    assert_eq!(requeued[0].outcome, "not_requeueable");
    assert_eq!(app.discard(&[letters[0].id]).await.expect("discard"), 1);
    goes_on(&world).await;
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn an_unknown_event_is_dropped() {
    let world = World::new().await;
    let app = start(&world).await;
    world.transport.deliver(raw("tests.unheard_of", "{}"));
    wait_until("it was dropped", || async { app.counts().dropped == 1 }).await;
    goes_on(&world).await;
    assert_eq!(world.count("SELECT count(*) FROM wh_dead_letters").await, 0);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn an_unknown_command_is_a_dead_letter() {
    let world = World::new().await;
    let app = start(&world).await;
    let mut message = raw("tests.unheard_of", "{}");
    message.is_command = true;
    world.transport.deliver(message.clone());
    world.transport.deliver(message);
    let letters = letters(&world, &app, 1).await;
    assert_eq!(letters[0].reason, "unhandled");
    assert_eq!(letters[0].payload.as_deref(), Some("{}"));
    goes_on(&world).await;
    world.dead_letters(1).await;
    app.shutdown().await.expect("shutdown");
}

/// Is tried as often as any message, since another version may understand it, and then kept.
async fn is_tried_and_kept(message_type: &str, payload: &str, handlers: i64, told: &str) {
    let world = World::new().await;
    let app = start(&world).await;
    world.transport.deliver(raw(message_type, payload));
    for letter in letters(&world, &app, handlers).await {
        assert_eq!(
            (letter.reason.as_str(), letter.attempts),
            ("failed", ATTEMPTS)
        );
        assert_eq!(letter.payload.as_deref(), Some(payload));
        let error = letter.error.unwrap_or_default();
        assert!(error.contains(told), "{error}");
    }
    goes_on(&world).await;
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn fields_of_the_wrong_type() {
    for payload in [
        r#"{"number":"one"}"#,
        r#"{"number":1.5}"#,
        "{}",
        "[]",
        "null",
    ] {
        is_tried_and_kept(
            "tests.ping",
            payload,
            2,
            "does not fit message type `tests.ping`",
        )
        .await;
    }
}

#[tokio::test]
async fn a_lone_surrogate_in_a_field() {
    let payload = r#"{"stream":"\ud800","number":1}"#;
    is_tried_and_kept("tests.stepped", payload, 1, "does not fit").await;
}

#[tokio::test]
async fn a_nul_character_that_a_handler_writes_to_a_column() {
    let payload = r#"{"stream":"a\u0000b","number":1}"#;
    is_tried_and_kept("tests.stepped", payload, 1, "0x00").await;
}

#[tokio::test]
async fn nul_characters_and_surrogates_in_fields_that_nobody_reads() {
    let world = World::new().await;
    let app = start(&world).await;
    let payload = r#"{"number":7,"nul":"\u0000","half":"\ud800","other":[null]}"#;
    world.transport.deliver(raw("tests.ping", payload));
    wait_until("it was handled like any other", || async {
        world.effects("scripted", 7).await == 1
    })
    .await;
    goes_on(&world).await;
    assert_eq!(world.count("SELECT count(*) FROM wh_dead_letters").await, 0);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn a_message_id_used_again_with_another_payload() {
    let world = World::new().await;
    let app = start(&world).await;
    let id = Uuid::now_v7();
    world.deliver(id, &Ping { number: 1 });
    world.quiet().await;
    world.deliver(id, &Ping { number: 2 });
    wait_until("it was noticed", || async { app.counts().conflicts == 1 }).await;
    goes_on(&world).await;
    assert_eq!(world.effects("scripted", 1).await, 1);
    assert_eq!(world.effects("scripted", 2).await, 0);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn a_command_key_used_again_with_another_payload() {
    let world = World::new().await;
    let app = start(&world).await;
    let payment_id = Uuid::now_v7();
    for cents in [100, 200] {
        world.feed(&Pay { payment_id, cents });
        wait_until("it is settled", || world.is_quiet()).await;
    }
    let letters = letters(&world, &app, 1).await;
    assert_eq!(letters[0].reason, "key_reused");
    assert_eq!(
        world.count("SELECT sum(cents)::bigint FROM payments").await,
        100
    );
    goes_on(&world).await;
    app.shutdown().await.expect("shutdown");
}
