//! P7: what a command's key keeps, and what is found to be the same request.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use serde::{Deserialize, Serialize};
use whizbang::{BoxError, Command, ExecuteError, State, handler, idempotent_command};
use whizbang_postgres::{App, HandlerContext};
use whizbang_tests::{Noted, Ping, World, wait_until};

/// How often a handler was called.
type Calls = Arc<AtomicU32>;

#[derive(Debug, Clone, Serialize, Deserialize, Command)]
#[message(name = "tests.book", reply = i64)]
struct Book {
    booking: String,
    seat: i64,
}

#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
enum BookError {
    #[error("there is no seat {seat}")]
    NoSuchSeat { seat: i64 },
    #[error("closed for now")]
    Closed,
    #[error("could not book")]
    Failed {
        #[serde(skip)]
        source: Option<sqlx::Error>,
    },
    #[error(transparent)]
    #[serde(skip)]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    #[serde(skip)]
    Publish(#[from] whizbang::PublishError),
}

impl BookError {
    fn is_final(&self) -> bool {
        // The database's errors are named as well, to show that they are not kept all the same.
        !matches!(self, Self::Closed)
    }
}

/// Refuses negative seats for good, and every first call for seat 0.
#[idempotent_command(key = booking, store_error = BookError::is_final, version = "7", already_done = "seat_taken")]
async fn book(
    command: Book,
    cx: &mut HandlerContext<'_>,
    State(calls): State<Calls>,
) -> Result<i64, BookError> {
    let call = calls.fetch_add(1, Ordering::SeqCst);
    sqlx::query("INSERT INTO bookings (seat, booking) VALUES ($1, $2)")
        .bind(command.seat)
        .bind(&command.booking)
        .execute(cx.conn())
        .await?;
    cx.publish(&Noted {
        number: command.seat,
    })
    .await?;
    match command.seat {
        seat if seat < 0 => Err(BookError::NoSuchSeat { seat }),
        0 if call == 0 => Err(BookError::Closed),
        1 if call == 0 => {
            // What a serializable neighbour would have caused.
            let conflict = "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$";
            let failed = sqlx::raw_sql(conflict).execute(cx.conn()).await;
            Err(BookError::Failed {
                source: failed.err(),
            })
        }
        seat => Ok(seat * 100),
    }
}

const BOOKINGS: &str =
    "CREATE TABLE bookings (seat bigint CONSTRAINT seat_taken PRIMARY KEY, booking text)";

async fn world() -> (World, Calls) {
    let world = World::new().await;
    sqlx::raw_sql(BOOKINGS)
        .execute(&world.pool)
        .await
        .expect("a table");
    (world, Calls::default())
}

async fn start(world: &World, calls: &Calls) -> App {
    world
        .service()
        .register::<book>()
        .state(Arc::clone(calls))
        .start()
        .await
        .expect("start")
}

fn booking(seat: i64) -> Book {
    Book {
        booking: format!("of seat {seat}"),
        seat,
    }
}

async fn keys(world: &World) -> i64 {
    world.count("SELECT count(*) FROM wh_command_results").await
}

fn assert_no_such_seat(answer: Result<i64, ExecuteError>, wanted: i64) {
    let Err(ExecuteError::Refused(error)) = answer else {
        panic!("{answer:?}");
    };
    match error.downcast_ref::<BookError>() {
        Some(BookError::NoSuchSeat { seat }) => assert_eq!(*seat, wanted),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_chosen_error_is_the_answer_on_every_path_and_nothing_else_is_kept() {
    let (world, calls) = world().await;
    let app = start(&world, &calls).await;
    let dispatcher = app.dispatcher();
    assert_no_such_seat(dispatcher.execute(booking(-4)).await, -4);
    assert_no_such_seat(dispatcher.execute(booking(-4)).await, -4);
    let mut tx = world.pool.begin().await.expect("begin");
    assert_no_such_seat(dispatcher.execute_in(&mut tx, booking(-4)).await, -4);
    dispatcher
        .send(&mut tx, &booking(-4))
        .await
        .expect("the transaction goes on");
    tx.commit().await.expect("commit");
    world.feed(&booking(-4));
    wait_until("both arrived", || async { app.counts().completed == 2 }).await;
    world.quiet().await;
    assert_eq!(calls.load(Ordering::SeqCst), 1, "calls");
    let rest = "SELECT (SELECT count(*) FROM bookings) + (SELECT count(*) FROM wh_dead_letters)";
    assert_eq!(world.count(rest).await, 0);
    let row: (String, bool, bool) = sqlx::query_as(
        "SELECT method_version, result IS NULL, completed FROM wh_command_results WHERE error IS NOT NULL",
    )
    .fetch_one(&world.pool)
    .await
    .expect("one row");
    assert_eq!(row, ("7".to_owned(), true, true));
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn a_message_that_came_first_ends_with_its_recorded_error() {
    let (world, calls) = world().await;
    let app = start(&world, &calls).await;
    world.feed(&booking(-9));
    wait_until("it arrived", || async { app.counts().completed == 1 }).await;
    assert_no_such_seat(app.dispatcher().execute(booking(-9)).await, -9);
    assert_eq!(calls.load(Ordering::SeqCst), 1, "calls");
    world.dead_letters(0).await;
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn nobody_runs_between_a_refusal_and_its_record() {
    let (world, calls) = world().await;
    let apps = [start(&world, &calls).await, start(&world, &calls).await];
    let mut crowd = Vec::new();
    for turn in 0..20 {
        let dispatcher = apps[turn % 2].dispatcher();
        crowd.push(tokio::spawn(async move {
            dispatcher.execute(booking(-5)).await
        }));
    }
    for task in crowd {
        assert_no_such_seat(task.await.expect("no panic"), -5);
    }
    assert_eq!(calls.load(Ordering::SeqCst), 1, "calls");
    for app in apps {
        app.shutdown().await.expect("shutdown");
    }
}

#[tokio::test]
async fn those_who_waited_for_another_request_under_the_key_are_refused() {
    let (world, calls) = world().await;
    let app = start(&world, &calls).await;
    let mut crowd = Vec::new();
    for turn in 0..20 {
        let dispatcher = app.dispatcher();
        let command = Book {
            booking: "one key".to_owned(),
            seat: 5 + turn % 2,
        };
        crowd.push(tokio::spawn(async move {
            let seat = command.seat;
            (seat, dispatcher.execute(command).await)
        }));
    }
    let mut answered = std::collections::HashSet::new();
    let mut reused = std::collections::HashSet::new();
    for task in crowd {
        match task.await.expect("no panic") {
            (seat, Ok(reply)) => {
                assert_eq!(reply, seat * 100);
                answered.insert(seat);
            }
            (seat, Err(ExecuteError::KeyReused { .. })) => drop(reused.insert(seat)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((answered.len(), reused.len()), (1, 1));
    assert!(answered.is_disjoint(&reused), "{answered:?} {reused:?}");
    assert_eq!(calls.load(Ordering::SeqCst), 1, "calls");
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn other_errors_free_the_key() {
    let (world, calls) = world().await;
    let app = start(&world, &calls).await;
    let closed = app.dispatcher().execute(booking(0)).await;
    let Err(ExecuteError::Handler(error)) = closed else {
        panic!("{closed:?}");
    };
    assert!(matches!(error.downcast_ref(), Some(BookError::Closed)));
    assert_eq!(keys(&world).await, 0);
    assert_eq!(app.dispatcher().execute(booking(0)).await.expect("open"), 0);
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn an_error_of_the_database_is_never_the_answer() {
    let (world, calls) = world().await;
    let app = start(&world, &calls).await;
    // The first call meets a conflict, which is tried again at once.
    let seat = app.dispatcher().execute(booking(1)).await;
    assert_eq!(seat.expect("executed"), 100);
    assert_eq!(calls.load(Ordering::SeqCst), 2, "calls");
    app.shutdown().await.expect("shutdown");
}

/// Takes a seat by other means, as the service did before it had keys.
async fn take(world: &World, seat: i64) {
    sqlx::query("INSERT INTO bookings (seat, booking) VALUES ($1, 'long ago')")
        .bind(seat)
        .execute(&world.pool)
        .await
        .expect("a free seat");
}

#[tokio::test]
async fn a_unique_violation_can_mean_that_a_command_was_done() {
    let (world, calls) = world().await;
    take(&world, 8).await;
    let app = start(&world, &calls).await;
    let dispatcher = app.dispatcher();
    for _ in 0..2 {
        let done = dispatcher.execute(booking(8)).await;
        assert!(
            matches!(&done, Err(ExecuteError::AlreadyDone { constraint }) if constraint == "seat_taken"),
            "{done:?}"
        );
    }
    let mut tx = world.pool.begin().await.expect("begin");
    let done = dispatcher.execute_in(&mut tx, booking(8)).await;
    assert!(
        matches!(done, Err(ExecuteError::AlreadyDone { .. })),
        "{done:?}"
    );
    tx.commit().await.expect("the caller's transaction goes on");
    world.feed(&booking(8));
    wait_until("it is completed", || async { app.counts().completed == 1 }).await;
    world.quiet().await;
    world.dead_letters(0).await;
    assert_eq!(keys(&world).await, 0, "there is no reply to keep");
    assert_eq!(calls.load(Ordering::SeqCst), 4, "calls");
    app.shutdown().await.expect("shutdown");
}

/// Its unique constraint says that a number was handled, whatever its message id.
#[handler(already_done = "seat_taken", max_attempts = 1)]
async fn note_in_bookings(ping: Ping, cx: &mut HandlerContext<'_>) -> Result<(), BoxError> {
    cx.publish(&Noted {
        number: ping.number,
    })
    .await?;
    sqlx::query("INSERT INTO bookings (seat) VALUES ($1)")
        .bind(ping.number)
        .execute(cx.conn())
        .await?;
    if ping.number == 13 {
        // Another constraint is another matter.
        sqlx::query("INSERT INTO unlucky VALUES (1), (1)")
            .execute(cx.conn())
            .await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_unique_violation_can_mean_that_a_message_was_done() {
    let (world, _) = world().await;
    sqlx::raw_sql("CREATE TABLE unlucky (number int UNIQUE)")
        .execute(&world.pool)
        .await
        .expect("a table");
    let app = world
        .service()
        .register::<note_in_bookings>()
        .start()
        .await
        .expect("start");
    for number in [1, 1, 1, 13] {
        world.feed(&Ping { number });
    }
    world.quiet().await;
    world.dead_letters(1).await;
    assert_eq!(app.counts().completed, 3);
    assert_eq!(world.count("SELECT count(*) FROM bookings").await, 1);
    app.shutdown().await.expect("shutdown");
}

/// The booking command after a year: new fields, an old client.
mod next_version {
    use super::{BoxError, Command, Deserialize, HandlerContext, Serialize, idempotent_command};

    #[derive(Debug, Clone, Serialize, Deserialize, Command)]
    #[message(name = "tests.book_seat", alias = "tests.book", reply = i64)]
    pub(super) struct BookSeat {
        pub(super) booking: String,
        pub(super) seat: i64,
        pub(super) note: Option<String>,
        #[serde(default = "first_class")]
        pub(super) class: u8,
    }

    fn first_class() -> u8 {
        1
    }

    #[idempotent_command(key = booking)]
    pub(super) async fn book_seat(
        _command: BookSeat,
        _cx: &mut HandlerContext<'_>,
    ) -> Result<i64, BoxError> {
        Ok(-1)
    }
}

#[tokio::test]
async fn a_retry_of_an_old_request_is_the_same_request_for_the_next_version() {
    use next_version::{BookSeat, book_seat};
    let (world, calls) = world().await;
    let app = start(&world, &calls).await;
    let text = r#"{"booking":"b-1","seat":3}"#;
    let first = app.dispatcher().execute_json::<Book>(text).await;
    assert_eq!(first.expect("executed"), 300);
    let typed = Book {
        booking: "b-1".to_owned(),
        seat: 3,
    };
    let again = app.dispatcher().execute(typed).await;
    assert_eq!(again.expect("the typed form says the same"), 300);
    app.shutdown().await.expect("shutdown");

    let app = world
        .service()
        .register::<book_seat>()
        .start()
        .await
        .expect("start");
    let dispatcher = app.dispatcher();
    for retry in [
        text,
        "{ \"seat\": 3, \"note\": null, \"booking\": \"b\\u002d1\" }",
    ] {
        let reply = dispatcher.execute_json::<BookSeat>(retry).await;
        assert_eq!(reply.expect(retry), 300);
    }
    for other in [
        r#"{"booking":"b-1","seat":4}"#,
        r#"{"booking":"b-1","seat":3,"note":"x"}"#,
        // Its sender has said more than the old request did.
        r#"{"booking":"b-1","seat":3,"class":1}"#,
    ] {
        let reused = dispatcher.execute_json::<BookSeat>(other).await;
        let Err(ExecuteError::KeyReused {
            scope,
            key,
            stored,
            given,
        }) = reused
        else {
            panic!("{other}: {reused:?}");
        };
        assert_eq!((scope.as_str(), key.as_str()), ("tests.book", "b-1"));
        assert_eq!((stored.len(), given.len()), (64, 64));
        assert_ne!(stored, given);
    }
    let unfit = dispatcher
        .execute_json::<BookSeat>(r#"{"booking":7}"#)
        .await;
    assert!(matches!(unfit, Err(ExecuteError::Decode(_))), "{unfit:?}");
    let command = BookSeat {
        booking: "b-2".to_owned(),
        seat: 1,
        note: None,
        class: 2,
    };
    assert_eq!(dispatcher.execute(command).await.expect("new"), -1);
    app.shutdown().await.expect("shutdown");
}
