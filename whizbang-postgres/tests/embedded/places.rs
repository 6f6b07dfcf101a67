//! Servers in unusual places and under unusual users.

use std::{env, fs, path::Path};

use rustix::process::geteuid;
use sqlx::{Connection, PgConnection};
use whizbang_postgres::embedded::{Installation, Server};

use crate::support::{
    Actor, Outcome, as_ordinary_user, assert_gone, give_to_everybody, open_folder, servers_below,
    wait_until,
};

/// A folder whose path has spaces, quotes and a hundred characters or more.
fn awkward(parent: &Path) -> std::path::PathBuf {
    let mut folder = parent.join("with 'quotes', \"commas\" and a good deal of text");
    folder.push("x".repeat(60));
    fs::create_dir_all(&folder).unwrap();
    give_to_everybody(&folder);
    assert!(folder.as_os_str().len() > 100);
    folder
}

#[tokio::test]
async fn a_long_path_with_spaces_is_no_obstacle() -> Outcome {
    let parent = open_folder();
    let folder = awkward(parent.path());
    let program = env::current_exe()?;
    let mut actor = Actor::start_with("durable_owner", &program, |command| {
        command
            .env("WHIZBANG_DATA_DIR", &folder)
            .env("WHIZBANG_CACHE_DIR", folder.join("cache"))
            .env("TMPDIR", &folder)
    });
    let server = actor.hear("folder");
    assert!(Path::new(&server).starts_with(&folder));
    let mut connection = PgConnection::connect(&actor.hear("url")).await?;
    let name: String = sqlx::query_scalar("SELECT current_database()::text")
        .fetch_one(&mut connection)
        .await?;
    assert_eq!(name, "a \"b\" / c");
    let sockets: String = sqlx::query_scalar("SHOW unix_socket_directories")
        .fetch_one(&mut connection)
        .await?;
    let sockets = Path::new(sockets.trim_matches('"')).to_owned();
    assert!(sockets.exists());
    assert!(actor.end().success());
    assert_gone(Path::new(&server));
    wait_until("the socket's folder is removed", || !sockets.exists());
    Ok(())
}

#[test]
fn an_ordinary_user_without_a_home_gets_a_server() -> Outcome {
    let home = open_folder();
    give_to_everybody(home.path());
    // The build folder may be closed to others, so the user gets a copy of the program.
    let program = home.path().join("program");
    fs::copy(env::current_exe()?, &program)?;
    let mut actor = Actor::start_with("owner", &program, |command| {
        as_ordinary_user(command)
            .env("TMPDIR", home.path())
            .env("WHIZBANG_DATA_DIR", home.path())
            .env("HOME", "/nonexistent")
            .env_remove("XDG_CACHE_HOME")
            .env_remove("WHIZBANG_CACHE_DIR")
            .current_dir(home.path())
    });
    let folder = actor.hear("folder");
    assert!(Path::new(&folder).exists());
    assert!(actor.end().success());
    assert_gone(Path::new(&folder));
    assert_eq!(servers_below(home.path()).len(), 1, "only the cache stays");
    Ok(())
}

#[test]
fn the_server_runs_as_an_ordinary_user_behind_a_closed_door() -> Outcome {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let server = Server::start()?;
    let folder = fs::metadata(server.folder())?;
    assert_eq!(folder.permissions().mode() & 0o777, 0o700);
    let data = fs::metadata(server.folder().join("data/postmaster.pid"))?;
    assert_ne!(data.uid(), 0);
    assert_eq!(data.uid(), folder.uid());
    if !geteuid().is_root() {
        assert_eq!(data.uid(), geteuid().as_raw());
    }
    Ok(())
}

#[test]
fn a_search_path_without_the_system_is_no_obstacle() -> Outcome {
    let found = Installation::find()?;
    let program = env::current_exe()?;
    let mut actor = Actor::start_with("owner", &program, |command| {
        command
            .env("WHIZBANG_POSTGRES_BIN", found.folder())
            .env("PATH", "/nowhere")
    });
    let folder = actor.hear("folder");
    assert!(actor.end().success());
    assert_gone(Path::new(&folder));
    Ok(())
}
