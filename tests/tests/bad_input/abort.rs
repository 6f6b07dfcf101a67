//! A handler that takes its whole process down.

use std::{os::unix::process::ExitStatusExt, process::Stdio, time::Duration};

use sqlx::PgPool;
use tokio::{
    io::AsyncReadExt,
    process::{Child, Command},
};
use whizbang::{BoxError, handler, transport::InProcess};
use whizbang_postgres::{HandlerContext, Whizbang};
use whizbang_tests::{Ping, World, wait_until};

/// Where the child finds the database of its parent's test.
const DATABASE: &str = "WHIZBANG_TEST_OF_ABORT";

/// The message that no process survives.
const DEADLY: i64 = 13;

/// Aborts the process for one message, and writes an effect for all others.
#[handler]
async fn survive(ping: Ping, cx: &mut HandlerContext<'_>) -> Result<(), BoxError> {
    if ping.number == DEADLY {
        std::process::abort();
    }
    sqlx::query("INSERT INTO effects (handler, number) VALUES ('survive', $1)")
        .bind(ping.number)
        .execute(cx.conn())
        .await?;
    Ok(())
}

fn service(pool: PgPool, transport: InProcess) -> whizbang_postgres::Builder {
    Whizbang::builder(pool)
        .service("tests")
        .without_discovery()
        .register::<survive>()
        .intake(transport)
        .max_attempts(3)
        .configure(|config| {
            config.heartbeat = Duration::from_millis(100);
            config.dead_after = Duration::from_secs(1);
            config.idle_poll = Duration::from_millis(50);
        })
}

/// Not a test by itself: the process that dies. It ends when its standard input does.
#[tokio::test]
#[ignore = "no test by itself: the process that the test below starts and that dies"]
async fn child() {
    let Ok(url) = std::env::var(DATABASE) else {
        panic!("{DATABASE} says where the database is");
    };
    let pool = PgPool::connect(&url).await.expect("the database");
    let app = service(pool, InProcess::new("none")).start().await;
    let app = app.expect("start");
    let mut nothing = Vec::new();
    let mut input = tokio::io::stdin();
    input.read_to_end(&mut nothing).await.expect("the pipe");
    app.shutdown().await.expect("shutdown");
}

fn start_child(url: &str) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args([
            "--exact",
            "bad_input::abort::child",
            "--ignored",
            "--nocapture",
        ])
        .env(DATABASE, url)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("a child process")
}

#[tokio::test]
async fn a_message_that_kills_its_process_ends_in_the_dead_letters_and_its_neighbours_do_not() {
    let world = World::new().await;
    let transport = world.transport.clone();
    let seeder = service(world.pool.clone(), transport)
        .start()
        .await
        .expect("start");
    assert!(seeder.pause("survive"), "this process must not die");
    for number in [1, 2, DEADLY, 3, 4] {
        world.feed(&Ping { number });
    }
    wait_until("everything is stored", || async {
        seeder.counts().stored == 5
    })
    .await;
    seeder.shutdown().await.expect("shutdown");
    let url = world.database().url();
    let mut deaths = 0;
    loop {
        let mut child = start_child(&url);
        // Waiting for a child closes its input, unless that has been taken.
        let input = child.stdin.take();
        tokio::select! {
            status = child.wait() => {
                const SIGABRT: i32 = 6;
                let status = status.expect("the child's status");
                assert_eq!(status.signal(), Some(SIGABRT), "{status}");
                deaths += 1;
            }
            () = world.dead_letters(1) => {
                drop(input);
                assert!(child.wait().await.expect("the child").success());
                break;
            }
        }
    }
    assert_eq!(deaths, 4, "once in company, then three attempts alone");
    let reason: String = sqlx::query_scalar("SELECT reason FROM wh_dead_letters")
        .fetch_one(&world.pool)
        .await
        .expect("the letter");
    assert_eq!(reason, "crashed");
    world.quiet().await;
    for number in [1, 2, 3, 4] {
        assert_eq!(world.effects("survive", number).await, 1, "{number}");
    }
    let app = service(world.pool.clone(), world.transport.clone())
        .start()
        .await
        .expect("start");
    world.feed(&Ping { number: 5 });
    wait_until("a good message is handled", || async {
        world.effects("survive", 5).await == 1
    })
    .await;
    world.quiet().await;
    app.shutdown().await.expect("shutdown");
}
