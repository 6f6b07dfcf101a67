//! The parts that other processes play. Each runs only when a test starts it; by hand it would
//! wait for its standard input.

use std::io::{Read, stdin};

use whizbang_postgres::embedded::{Server, shared};

use crate::support::Outcome;

/// Says that the stage is set, and waits for the cue.
fn wait_for_cue() -> Outcome {
    stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn say(topic: &str, text: impl std::fmt::Display) {
    // The test harness has begun this line.
    println!("\n{topic}: {text}");
}

#[test]
#[ignore = "no test by itself: a process that the tests in `endings` and `sharing` start"]
fn owner() -> Outcome {
    let server = Server::start()?;
    say("folder", server.folder().display());
    wait_for_cue()
}

#[test]
#[ignore = "no test by itself: a process that the tests in `endings` and `sharing` start"]
fn durable_owner() -> Outcome {
    let server = Server::builder().durable(true).start()?;
    say("folder", server.folder().display());
    tokio::runtime::Runtime::new()?.block_on(server.create_database("a \"b\" / c"))?;
    say("url", server.url("a \"b\" / c"));
    wait_for_cue()
}

#[test]
#[ignore = "no test by itself: a process that the tests in `endings` and `sharing` start"]
fn owner_that_panics() {
    let server = Server::start().unwrap();
    say("folder", server.folder().display());
    wait_for_cue().unwrap();
    panic!("as the part demands");
}

#[test]
#[ignore = "no test by itself: a process that the tests in `endings` and `sharing` start"]
fn owner_that_exits() -> Outcome {
    let server = Server::start()?;
    say("folder", server.folder().display());
    wait_for_cue()?;
    std::process::exit(0);
}

#[test]
#[ignore = "no test by itself: a process that the tests in `endings` and `sharing` start"]
fn owner_with_children() -> Outcome {
    let server = Server::start()?;
    // A process that outlives us must not hold our server by an inherited pipe.
    let child = std::process::Command::new("sleep").arg("600").spawn()?;
    say("child", child.id());
    say("folder", server.folder().display());
    wait_for_cue()
}

#[test]
#[ignore = "no test by itself: a process that the tests in `endings` and `sharing` start"]
fn sharer() -> Outcome {
    let server = shared()?;
    say("url", server.url("postgres"));
    wait_for_cue()
}

#[test]
#[ignore = "no test by itself: a process that the tests in `endings` and `sharing` start"]
fn beginner() -> Outcome {
    say("beginning", "now");
    let _server = Server::start()?;
    wait_for_cue()
}

#[test]
#[ignore = "no test by itself: a process that the tests in `endings` and `sharing` start"]
fn abandoner_of_a_database() -> Outcome {
    tokio::runtime::Runtime::new()?.block_on(async {
        let database = whizbang_postgres::embedded::test_database().await?;
        say("name", database.name());
        say("url", shared()?.url("postgres"));
        wait_for_cue()?;
        std::process::abort();
    })
}

#[test]
#[ignore = "no test by itself: a process that the tests in `endings` and `sharing` start"]
fn owner_of_a_broken_server() {
    let error = Server::builder()
        .setting("shared_buffers", "banana")
        .start()
        .unwrap_err();
    say(
        "error",
        error.to_string().lines().next().unwrap_or_default(),
    );
}

#[test]
#[ignore = "no test by itself: a process that the tests in `endings` and `sharing` start"]
fn owner_without_postgres() {
    say("error", Server::start().unwrap_err());
}

#[test]
#[ignore = "no test by itself: a process that the tests in `endings` and `sharing` start"]
fn sharer_that_fails() {
    say("error", shared().unwrap_err());
}
