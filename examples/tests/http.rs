//! The web example as its clients meet it: retries, timeouts, parallel repeats, kills.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

use reqwest::{Client, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use whizbang_postgres::embedded::{TestDatabase, test_database};

/// The example as a process of its own, killed at the end unless it was stopped.
struct Service {
    process: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    url: String,
}

impl Service {
    fn start(database: &TestDatabase, arguments: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_http"))
            .args(["--listen", "127.0.0.1:0"])
            .args(arguments)
            .env("DATABASE_URL", database.url())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the example starts");
        let stdout = process.stdout.take().expect("its output");
        let mut lines = BufReader::new(stdout).lines();
        let first = lines.next().expect("it says something").expect("text");
        let url = first
            .strip_prefix("listening on ")
            .expect(&first)
            .to_owned();
        Self {
            process,
            lines,
            url,
        }
    }

    /// Asks it to stop, as a supervisor does.
    fn terminate(&self) {
        let pid = self.process.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &pid]).status();
        assert!(sent.expect("kill").success());
    }

    fn kill(&mut self) {
        self.process.kill().expect("kill");
        self.process.wait().expect("gone");
    }

    fn post(&self, client: &Client) -> RequestBuilder {
        client.post(format!("{}/orders", self.url))
    }

    /// An order with this key in the header.
    fn order(&self, client: &Client, key: &str, sku: &str, quantity: i64) -> RequestBuilder {
        self.post(client)
            .header("Idempotency-Key", key)
            .json(&json!({ "sku": sku, "quantity": quantity }))
    }

    async fn get(&self, client: &Client, path: &str) -> Response {
        let request = client.get(format!("{}{path}", self.url));
        request.send().await.expect("an answer")
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn answer(request: RequestBuilder) -> (StatusCode, Value) {
    let response = request.send().await.expect("an answer");
    let status = response.status();
    (status, response.json().await.expect("JSON"))
}

/// The id of an order that was accepted.
async fn placed(request: RequestBuilder) -> String {
    let (status, body) = answer(request).await;
    assert_eq!(status, StatusCode::CREATED, "{body}");
    body["order_id"].as_str().expect("an id").to_owned()
}

/// The status and code of a problem.
async fn problem(request: RequestBuilder) -> (u16, String) {
    let response = request.send().await.expect("an answer");
    let kind = response.headers().get("content-type").cloned();
    let status = response.status().as_u16();
    let body: Value = response.json().await.expect("JSON");
    assert_eq!(kind.expect("a type"), "application/problem+json", "{body}");
    assert_eq!(body["status"], status, "{body}");
    (status, body["code"].as_str().expect("a code").to_owned())
}

async fn count(database: &TestDatabase, sql: &'static str) -> i64 {
    let count = sqlx::query_scalar(sql).fetch_one(&database.pool()).await;
    count.expect("a count")
}

async fn orders(database: &TestDatabase) -> i64 {
    count(
        database,
        "SELECT count(*) FROM whizbang_http_example.orders",
    )
    .await
}

async fn taken(database: &TestDatabase) -> i64 {
    let left = "SELECT 1000 - available FROM whizbang_http_example.stock WHERE sku = 'tea'";
    count(database, left).await
}

#[tokio::test]
async fn a_repeat_gets_the_first_order_however_it_is_sent() {
    let database = test_database().await.expect("a database");
    let (service, client) = (Service::start(&database, &[]), Client::new());
    let first = service.order(&client, "\"k-1\"", "tea", 2).send().await;
    let first = first.expect("an answer");
    assert_eq!(first.status(), StatusCode::CREATED);
    let place = first.headers()["location"]
        .to_str()
        .expect("text")
        .to_owned();
    let receipt: Value = first.json().await.expect("JSON");
    let id = receipt["order_id"].as_str().expect("an id");
    assert_eq!(place, format!("/orders/{id}"));

    let bare = service.order(&client, "k-1", "tea", 2);
    let in_body = service
        .post(&client)
        .json(&json!({ "quantity": 2, "note": null, "request_id": "k-1", "sku": "tea" }));
    let in_both = service
        .post(&client)
        .header("Idempotency-Key", "k-1")
        .header("Content-Type", "application/json; charset=utf-8")
        .body(r#"{ "request_id":"k-1","sku":"te\u0061", "quantity":2 }"#);
    for repeat in [bare, in_body, in_both] {
        let (status, again) = answer(repeat).await;
        assert_eq!((status, &again), (StatusCode::CREATED, &receipt));
    }
    assert_ne!(placed(service.order(&client, "k-2", "tea", 2)).await, id);
    assert_eq!((orders(&database).await, taken(&database).await), (2, 4));

    // What the event caused is seen after a moment.
    let packed = async {
        loop {
            let order: Value = service
                .get(&client, &place)
                .await
                .json()
                .await
                .expect("JSON");
            assert_eq!(order["quantity"], 2);
            match order["packed"].as_i64() {
                Some(0) => tokio::time::sleep(Duration::from_millis(10)).await,
                times => return times,
            }
        }
    };
    let packed = tokio::time::timeout(Duration::from_secs(20), packed).await;
    assert_eq!(packed.expect("packed in time"), Some(1));
}

#[tokio::test]
async fn what_cannot_be_done_is_told_by_status_and_code() {
    let database = test_database().await.expect("a database");
    let (service, client) = (Service::start(&database, &[]), Client::new());
    let json = |text: &str| {
        let request = service.post(&client).header("Idempotency-Key", "k");
        let request = request.header("Content-Type", "application/json");
        request.body(text.to_owned())
    };
    let expect = async |request, status: u16, code: &str| {
        assert_eq!(problem(request).await, (status, code.to_owned()));
    };
    let body = json!({ "sku": "tea", "quantity": 1 });
    let missing = service.post(&client).json(&body);
    expect(missing, 400, "idempotency_key_missing").await;
    for invalid in ["\"open", "two words", "\"\""] {
        let request = service.order(&client, invalid, "tea", 1);
        expect(request, 400, "idempotency_key_invalid").await;
    }
    let twice = service
        .order(&client, "a", "tea", 1)
        .header("Idempotency-Key", "b");
    expect(twice, 400, "idempotency_key_invalid").await;
    expect(json("{\"sku\":"), 400, "malformed").await;
    expect(json("[1]"), 400, "malformed").await;
    let other = r#"{"request_id":"other","sku":"tea","quantity":1}"#;
    expect(json(other), 400, "malformed").await;
    expect(json(r#"{"sku":"tea"}"#), 422, "invalid").await;
    let plain = service
        .post(&client)
        .header("Idempotency-Key", "k")
        .body("x");
    expect(plain, 415, "not_json").await;
    let large = format!(r#"{{"sku":"{}","quantity":1}}"#, "x".repeat(3_000_000));
    expect(json(&large), 413, "too_large").await;
    assert_eq!(orders(&database).await, 0);

    placed(service.order(&client, "k", "tea", 1)).await;
    let reused = service.order(&client, "k", "tea", 2);
    expect(reused, 422, "idempotency_key_reused").await;
    // A final refusal is the answer for good, even when it would succeed by now.
    let unknown = || service.order(&client, "mate", "mate", 1);
    expect(unknown(), 422, "refused").await;
    let add = "INSERT INTO whizbang_http_example.stock VALUES ('mate', 9)";
    sqlx::query(add)
        .execute(&database.pool())
        .await
        .expect("mate");
    expect(unknown(), 422, "refused").await;
    // Another refusal leaves the key free.
    let cocoa = || service.order(&client, "cocoa", "cocoa", 4);
    expect(cocoa(), 409, "sold_out").await;
    let fill = "UPDATE whizbang_http_example.stock SET available = 9 WHERE sku = 'cocoa'";
    sqlx::query(fill)
        .execute(&database.pool())
        .await
        .expect("filled");
    placed(cocoa()).await;
    let nobody = format!("{}/orders/{}", service.url, uuid::Uuid::nil());
    expect(client.get(nobody), 404, "no_such_order").await;
}

#[tokio::test]
async fn parallel_repeats_at_two_instances_are_one_order() {
    let database = test_database().await.expect("a database");
    let services = [
        Service::start(&database, &["--slow", "200"]),
        Service::start(&database, &["--slow", "200"]),
    ];
    let client = Client::new();
    let mut repeats = tokio::task::JoinSet::new();
    for turn in 0..40 {
        let key = format!("k-{}", turn % 2);
        let request = services[turn / 2 % 2].order(&client, &key, "tea", 1);
        repeats.spawn(async move { (turn % 2, placed(request).await) });
    }
    let mut ids = std::collections::HashSet::new();
    while let Some(repeat) = repeats.join_next().await {
        ids.insert(repeat.expect("an answer"));
    }
    assert_eq!(ids.len(), 2, "{ids:?}");
    assert_eq!((orders(&database).await, taken(&database).await), (2, 2));
}

#[tokio::test]
async fn a_client_whose_patience_is_too_short_gets_its_order_by_trying_again() {
    let database = test_database().await.expect("a database");
    let service = Service::start(&database, &["--slow", "600"]);
    let client = Client::new();
    let mut timed_out = 0;
    let id = loop {
        let request = service.order(&client, "k", "tea", 3);
        match request.timeout(Duration::from_millis(200)).send().await {
            Err(error) if error.is_timeout() => timed_out += 1,
            Err(error) => panic!("{error}"),
            Ok(response) => {
                assert_eq!(response.status(), StatusCode::CREATED);
                let receipt: Value = response.json().await.expect("JSON");
                break receipt["order_id"].as_str().expect("an id").to_owned();
            }
        }
        assert!(timed_out < 100, "the work of the first try was in vain");
    };
    assert!(timed_out > 0, "the first try was too short");
    assert_eq!(placed(service.order(&client, "k", "tea", 3)).await, id);
    assert_eq!((orders(&database).await, taken(&database).await), (1, 3));
}

#[tokio::test]
async fn a_repeat_under_way_is_refused_if_so_configured() {
    let database = test_database().await.expect("a database");
    let arguments = ["--slow", "1000", "--refuse-in-progress"];
    let service = Service::start(&database, &arguments);
    let client = Client::new();
    let first = tokio::spawn(placed(service.order(&client, "k", "tea", 1)));
    let refused = loop {
        // Until the first one has begun, there is nothing under way.
        let busy = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        if count(&database, busy).await > 0 {
            break service.order(&client, "k", "tea", 1).send().await;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let refused = refused.expect("an answer");
    assert_eq!(refused.status(), StatusCode::CONFLICT);
    assert_eq!(refused.headers()["retry-after"], "1");
    let id = first.await.expect("no panic");
    assert_eq!(placed(service.order(&client, "k", "tea", 1)).await, id);
    assert_eq!(orders(&database).await, 1);
}

#[tokio::test]
async fn a_killed_service_leaves_the_key_free_and_no_half_order() {
    let database = test_database().await.expect("a database");
    let mut service = Service::start(&database, &["--slow", "600000"]);
    let client = Client::new();
    let request = service.order(&client, "k", "tea", 5);
    let cut_off = tokio::spawn(request.send());
    let running = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'";
    while count(&database, running).await == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    service.kill();
    assert!(cut_off.await.expect("no panic").is_err(), "no answer");
    let service = Service::start(&database, &[]);
    let id = placed(service.order(&client, "k", "tea", 5)).await;
    assert_eq!(placed(service.order(&client, "k", "tea", 5)).await, id);
    assert_eq!((orders(&database).await, taken(&database).await), (1, 5));
}

#[tokio::test]
async fn it_answers_what_is_under_way_before_it_stops() {
    let database = test_database().await.expect("a database");
    let mut service = Service::start(&database, &["--slow", "500"]);
    let client = Client::new();
    assert_eq!(service.get(&client, "/health/live").await.status(), 200);
    let ready = service.get(&client, "/health/ready").await;
    assert_eq!(ready.status(), 200);
    let ready: Value = ready.json().await.expect("JSON");
    assert_eq!(
        (&ready["accepting"], &ready["database"]),
        (&json!(true), &json!(true))
    );

    let under_way = tokio::spawn(placed(service.order(&client, "k", "tea", 1)));
    let running = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'";
    while count(&database, running).await == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    service.terminate();
    under_way.await.expect("it is answered");
    let rest: Vec<_> = service
        .lines
        .by_ref()
        .collect::<Result<_, _>>()
        .expect("text");
    assert_eq!(rest, ["stopped"]);
    assert!(service.process.wait().expect("an end").success());
    let nobody = service.order(&client, "k", "tea", 1).send().await;
    assert!(nobody.is_err(), "nobody listens");
    assert_eq!(orders(&database).await, 1);
}

/// The lines of the README, in a shell, against the example as the README starts it.
#[tokio::test]
async fn the_script_of_the_readme_shows_what_it_says() {
    if Command::new("curl").arg("--version").output().is_err() {
        println!("SKIPPED: there is no curl on this machine");
        return;
    }
    let readme = include_str!("../../README.md");
    let blocks = readme.split("```sh\n").skip(1);
    let mut blocks = blocks.filter_map(|rest| rest.split("```").next());
    let script = blocks.find(|block| block.starts_with("order()"));
    let script = script.expect("a block that defines `order`");
    let database = test_database().await.expect("a database");
    let service = Service::start(&database, &["--slow", "2000"]);
    let address = service.url.trim_start_matches("http://");
    let script = script.replace("localhost:3000", address);
    let ran = tokio::process::Command::new("bash")
        .args(["-c", &script])
        .output()
        .await
        .expect("a shell");
    let text = String::from_utf8(ran.stdout).expect("text");
    let one_by_one = text.lines().take(6);
    let statuses: Vec<_> = one_by_one
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(_, status)| status)
        .collect();
    assert_eq!(
        statuses,
        ["000", "201", "201", "201", "422", "400"],
        "{text}"
    );
    // The five at once write into each other's lines.
    assert_eq!(text.matches(" 201\n").count(), 3 + 5, "{text}");
    let receipts = text.split("{\"order_id\":\"").skip(1);
    let receipts: Vec<_> = receipts.filter_map(|rest| rest.get(..36)).collect();
    let distinct: std::collections::HashSet<_> = receipts.iter().collect();
    assert_eq!((receipts.len(), distinct.len()), (3 + 5, 2), "{text}");
    assert!(text.contains("\"accepting\":true"), "{text}");
    assert_eq!(orders(&database).await, 2);
}
