//! The example as a user runs it, on the first lines of its file.

use std::process::{Command, Output};

use whizbang_postgres::embedded::{TestDatabase, test_database};

async fn database() -> TestDatabase {
    test_database().await.expect("a database")
}

fn orders(database: &TestDatabase, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_orders"))
        .args(arguments)
        .env("DATABASE_URL", database.url())
        .output()
        .expect("the example runs")
}

/// Fails with everything that the example said.
fn assert_balanced(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let balanced = text.lines().last() == Some("ledger: balanced");
    assert!(balanced && output.status.success(), "{errors}\n{text}");
}

#[tokio::test]
async fn the_ledger_balances() {
    let database = database().await;
    let output = orders(&database, &["--orders", "300", "--seed", "7"]);
    assert_balanced(&output);
}

#[tokio::test]
async fn the_ledger_balances_while_workers_are_killed() {
    let database = database().await;
    let arguments = ["--instances", "2", "--chaos", "--orders", "300"];
    let output = orders(&database, &arguments);
    assert_balanced(&output);
    let text = String::from_utf8_lossy(&output.stdout);
    let killed = text.lines().find(|line| line.starts_with("workers killed"));
    let killed = killed.and_then(|line| line.split_whitespace().last());
    assert!(killed.is_some_and(|count| count != "0"), "{text}");
}

/// Waits for the first booking and books it once more, as a second effect would.
async fn book_twice(database: &TestDatabase) {
    const AGAIN: &str = "INSERT INTO whizbang_orders_example.bookings SELECT * FROM whizbang_orders_example.bookings WHERE account = 'shop' LIMIT 1";
    let pool = database.pool();
    loop {
        // Until the example has made its tables, the statement fails.
        if let Ok(booked) = sqlx::query(AGAIN).execute(&pool).await
            && booked.rows_affected() == 1
        {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_effect_is_found_by_the_ledger() {
    let database = std::sync::Arc::new(database().await);
    let example = {
        let database = std::sync::Arc::clone(&database);
        tokio::task::spawn_blocking(move || orders(&database, &["--orders", "200"]))
    };
    let booked = tokio::time::timeout(std::time::Duration::from_secs(120), book_twice(&database));
    booked.await.expect("a booking");
    let output = example.await.expect("the example ran");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("difference: booking"), "{text}");
    assert!(text.contains("the bookings add up to"), "{text}");
    let last = text.lines().last().unwrap_or_default();
    assert!(last.starts_with("ledger: NOT balanced"), "{text}");
}

#[tokio::test]
async fn wrong_use_is_told_in_one_line() {
    let database = database().await;
    let output = orders(&database, &["--file", "no/such/file"]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.starts_with("error: the orders in no/such/file cannot be read"));
    assert_eq!(error.trim_end().lines().count(), 1, "{error}");
}
