//! What a server that cannot start says.

use std::fs;

use whizbang_postgres::embedded::{EmbeddedError, Server};

use crate::support::{Actor, Outcome, give_to_everybody, open_folder, servers_below, wait_until};

#[test]
fn a_setting_that_postgres_refuses_is_in_the_error_and_in_the_log() -> Outcome {
    let error = Server::builder()
        .setting("shared_buffers", "banana")
        .start()
        .unwrap_err();
    let text = error.to_string();
    assert!(text.contains("ended at once"), "{text}");
    assert!(text.contains("banana"), "{text}");
    let EmbeddedError::Start { log, .. } = error else {
        panic!("another error: {error}");
    };
    assert!(text.contains(&*log.to_string_lossy()));
    // Another test may have failed a start on purpose since, so the text may be another.
    assert!(!fs::read_to_string(&log)?.is_empty());
    Ok(())
}

#[test]
fn a_failed_start_leaves_nothing() -> Outcome {
    let (cache, data) = (open_folder(), open_folder());
    give_to_everybody(data.path());
    let program = std::env::current_exe()?;
    let mut actor = Actor::start_with("owner_of_a_broken_server", &program, |command| {
        command
            .env("WHIZBANG_CACHE_DIR", cache.path())
            .env("WHIZBANG_DATA_DIR", data.path())
    });
    let text = actor.hear("error");
    assert!(text.contains("is kept in"), "{text}");
    assert!(cache.path().join("failed-start.log").exists());
    assert!(actor.end().success());
    wait_until("the folder is removed", || {
        servers_below(data.path()).is_empty()
    });
    Ok(())
}

#[test]
fn a_setting_with_an_impossible_name_is_refused_before_anything_starts() {
    let error = Server::builder()
        .setting("port = 1\nfsync", "on")
        .start()
        .unwrap_err();
    assert!(matches!(error, EmbeddedError::Setting { .. }), "{error}");
}

#[test]
fn a_named_folder_without_postgres_is_an_error_and_nothing_is_fetched() -> Outcome {
    let empty = open_folder();
    let program = std::env::current_exe()?;
    let mut actor = Actor::start_with("owner_without_postgres", &program, |command| {
        command
            .env("WHIZBANG_POSTGRES_BIN", empty.path())
            .env("WHIZBANG_CACHE_DIR", empty.path())
            .env("PATH", "")
    });
    let text = actor.hear("error");
    assert!(text.contains("searched WHIZBANG_POSTGRES_BIN"), "{text}");
    assert!(
        text.contains("run `") && text.contains("set DATABASE_URL"),
        "{text}"
    );
    assert!(actor.end().success());
    Ok(())
}

#[test]
fn a_wrong_database_url_is_named() -> Outcome {
    let program = std::env::current_exe()?;
    let mut actor = Actor::start_with("sharer_that_fails", &program, |command| {
        command.env("DATABASE_URL", "no url")
    });
    let text = actor.hear("error");
    assert!(text.contains("DATABASE_URL"), "{text}");
    assert!(actor.end().success());
    Ok(())
}
