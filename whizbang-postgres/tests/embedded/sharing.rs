//! The server that processes share.

use std::{
    env,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use rustix::process::Signal;
use sqlx::{Connection, PgConnection, postgres::PgConnectOptions};
use tempfile::TempDir;

use crate::support::{Actor, Outcome, assert_gone, open_folder, processes_of, wait_until};

/// A cache of its own, so that the server is not the one that this process shares.
fn sharer(cache: &TempDir, part: &str) -> Actor {
    let program = env::current_exe().unwrap();
    Actor::start_with(part, &program, |command| {
        command.env("WHIZBANG_CACHE_DIR", cache.path())
    })
}

fn folder_of(url: &str) -> PathBuf {
    let options: PgConnectOptions = url.parse().unwrap();
    options.get_socket().unwrap().to_owned()
}

async fn answers(url: &str) -> bool {
    match PgConnection::connect(url).await {
        Ok(connection) => connection.close().await.is_ok(),
        Err(_) => false,
    }
}

#[tokio::test]
async fn processes_share_one_server_until_the_last_has_ended() -> Outcome {
    let cache = open_folder();
    let mut first = sharer(&cache, "sharer");
    let url = first.hear("url");
    let mut second = sharer(&cache, "sharer");
    assert_eq!(second.hear("url"), url);

    // The one that started it goes, by force.
    first.signal(Signal::KILL);
    assert!(!first.end().success());
    let mut third = sharer(&cache, "sharer");
    assert_eq!(third.hear("url"), url);
    assert!(second.end().success());
    assert!(answers(&url).await);

    // Within the grace the next one finds it.
    assert!(third.end().success());
    let mut fourth = sharer(&cache, "sharer");
    assert_eq!(fourth.hear("url"), url);
    assert!(answers(&url).await);
    fourth.signal(Signal::KILL);
    assert!(!fourth.end().success());
    assert_gone(&folder_of(&url));
    Ok(())
}

#[test]
fn processes_that_start_at_once_start_one_server() {
    let cache = open_folder();
    let mut actors: Vec<_> = (0..4).map(|_| sharer(&cache, "sharer")).collect();
    let urls: Vec<_> = actors.iter_mut().map(|actor| actor.hear("url")).collect();
    assert!(urls.iter().all(|url| *url == urls[0]), "{urls:?}");
    drop(actors);
    assert_gone(&folder_of(&urls[0]));
}

#[tokio::test]
async fn a_server_that_has_died_is_replaced() -> Outcome {
    let cache = open_folder();
    let mut first = sharer(&cache, "sharer");
    let url = first.hear("url");
    let folder = folder_of(&url);
    first.signal(Signal::KILL);
    assert_gone(&folder);
    let mut second = sharer(&cache, "sharer");
    let other = second.hear("url");
    assert_ne!(other, url);
    assert!(answers(&other).await);
    assert!(second.end().success());
    assert_gone(&folder_of(&other));
    Ok(())
}

#[tokio::test]
async fn the_database_of_a_dead_process_is_dropped_by_the_next() -> Outcome {
    let cache = open_folder();
    let mut dead = sharer(&cache, "abandoner_of_a_database");
    let (name, url) = (dead.hear("name"), dead.hear("url"));
    let mut holder = sharer(&cache, "sharer");
    assert_eq!(holder.hear("url"), url);
    let mut admin = PgConnection::connect(&url).await?;
    assert!(exists(&mut admin, &name).await?);
    assert!(!dead.end().success());
    let mut next = sharer(&cache, "abandoner_of_a_database");
    let living = next.hear("name");
    let mut remains = true;
    while remains {
        remains = exists(&mut admin, &name).await?;
    }
    assert!(
        exists(&mut admin, &living).await?,
        "a living process's database"
    );
    Ok(())
}

async fn exists(admin: &mut PgConnection, name: &str) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)")
        .bind(name)
        .fetch_one(admin)
        .await
}

#[tokio::test]
async fn a_database_url_is_used_as_it_is() -> Outcome {
    let server = whizbang_postgres::embedded::Server::start()?;
    server.create_database("given").await?;
    let url = server.url("given");
    let program = env::current_exe()?;
    let mut actor = Actor::start_with("abandoner_of_a_database", &program, |command| {
        command.env("DATABASE_URL", &url)
    });
    let name = actor.hear("name");
    assert_eq!(folder_of(&actor.hear("url")), server.folder());
    let mut admin = PgConnection::connect(&url).await?;
    assert!(exists(&mut admin, &name).await?);
    Ok(())
}

#[test]
fn a_pointer_to_something_else_is_not_followed() -> Outcome {
    let cache = open_folder();
    let mut first = sharer(&cache, "sharer");
    let folder = folder_of(&first.hear("url"));
    assert!(first.end().success());
    assert_gone(&folder);

    // A link in the place of the pipe must not make us write to what it leads to.
    let (trap, target) = (open_folder(), open_folder());
    let target = target.path().join("precious");
    std::fs::write(&target, "untouched")?;
    symlink(&target, trap.path().join("hold"))?;
    std::fs::write(trap.path().join("open"), "")?;
    let pointer = pointer_in(cache.path());
    let line = trap.path().display();
    std::fs::write(pointer, format!("{line}\n{line}\n"))?;

    let mut second = sharer(&cache, "sharer");
    let folder = folder_of(&second.hear("url"));
    assert!(!processes_of(&folder).is_empty());
    assert_eq!(std::fs::read_to_string(&target)?, "untouched");
    assert!(second.end().success());
    wait_until("the server is gone", || !folder.exists());
    Ok(())
}

fn pointer_in(cache: &Path) -> PathBuf {
    let entries = std::fs::read_dir(cache.join("shared")).unwrap();
    let mut files = entries.flatten().map(|entry| entry.path());
    files
        .find(|file| file.extension().is_some_and(|end| end == "server"))
        .unwrap()
}
