//! However the owner of a server ends, nothing of the server is left.

use std::{fs, path::PathBuf, thread, time::Duration};

use rustix::process::{Pid, Signal, kill_process};
use whizbang_postgres::embedded::Server;

use crate::support::{
    Actor, Outcome, assert_gone, give_to_everybody, has_shared_memory, open_folder, processes_of,
    servers_below, shared_memory_of, supervisor_of, wait_until,
};

fn started(part: &str) -> (Actor, PathBuf) {
    let mut actor = Actor::start(part);
    let folder = PathBuf::from(actor.hear("folder"));
    assert!(!processes_of(&folder).is_empty());
    (actor, folder)
}

#[test]
fn a_stopped_server_is_gone_at_once() -> Outcome {
    let server = Server::start()?;
    let (folder, segment) = (
        server.folder().to_owned(),
        shared_memory_of(server.folder()),
    );
    assert!(folder.exists() && !processes_of(&folder).is_empty());
    server.stop()?;
    assert!(!folder.exists());
    assert_eq!(processes_of(&folder), Vec::<String>::new());
    assert!(!has_shared_memory(&segment));
    Ok(())
}

#[test]
fn a_dropped_server_is_gone_at_once() -> Outcome {
    let server = Server::start()?;
    let folder = server.folder().to_owned();
    drop(server);
    assert!(!folder.exists());
    assert_eq!(processes_of(&folder), Vec::<String>::new());
    Ok(())
}

#[test]
fn an_owner_that_panics_leaves_nothing() {
    let (actor, folder) = started("owner_that_panics");
    assert!(!actor.end().success());
    assert!(!folder.exists());
    assert_gone(&folder);
}

#[test]
fn an_owner_that_exits_without_dropping_leaves_nothing() {
    let (actor, folder) = started("owner_that_exits");
    assert!(actor.end().success());
    assert_gone(&folder);
}

#[test]
fn a_killed_owner_leaves_nothing() {
    for signal in [Signal::KILL, Signal::INT, Signal::TERM, Signal::HUP] {
        let (actor, folder) = started("owner");
        let segment = shared_memory_of(&folder);
        actor.signal(signal);
        assert_gone(&folder);
        assert!(!has_shared_memory(&segment), "{signal:?}");
    }
}

#[test]
fn a_child_of_a_killed_owner_does_not_hold_the_server() {
    let mut actor = Actor::start("owner_with_children");
    let child = Pid::from_raw(actor.hear("child").parse().unwrap()).unwrap();
    let folder = PathBuf::from(actor.hear("folder"));
    actor.signal(Signal::KILL);
    assert_gone(&folder);
    kill_process(child, Signal::KILL).unwrap();
}

#[test]
fn a_paused_server_ends_with_its_owner() {
    let (actor, folder) = started("owner");
    let pid = fs::read_to_string(folder.join("pid.1")).unwrap();
    let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    actor.signal(Signal::KILL);
    assert_gone(&folder);
}

#[test]
fn a_killed_postgres_leaves_nothing_when_the_server_stops() -> Outcome {
    let mut server = Server::start()?;
    let folder = server.folder().to_owned();
    let segment = shared_memory_of(&folder);
    server.kill()?;
    server.stop()?;
    assert!(!folder.exists());
    assert!(!has_shared_memory(&segment));
    Ok(())
}

#[test]
fn the_supervisor_ends_the_server_on_request() {
    let (_actor, folder) = started("owner");
    kill_process(supervisor_of(&folder), Signal::TERM).unwrap();
    assert_gone(&folder);
}

#[test]
fn the_next_start_removes_a_server_whose_supervisor_was_killed() -> Outcome {
    let (actor, folder) = started("owner");
    kill_process(supervisor_of(&folder), Signal::KILL)?;
    actor.signal(Signal::KILL);
    wait_until("the supervisor has ended", || {
        processes_of(&folder.join("supervisor.sh")).is_empty()
    });
    assert!(folder.exists());
    let _next = Server::start()?;
    assert_gone(&folder);
    Ok(())
}

#[test]
fn an_owner_killed_while_it_starts_leaves_nothing_for_ever() -> Outcome {
    // Everything is new to these processes, so there is a template to be killed in as well.
    let (cache, data) = (open_folder(), open_folder());
    give_to_everybody(data.path());
    let start = |part: &str| {
        let program = std::env::current_exe().unwrap();
        Actor::start_with(part, &program, |command| {
            command
                .env("WHIZBANG_CACHE_DIR", cache.path())
                .env("WHIZBANG_DATA_DIR", data.path())
        })
    };
    for moment in [5, 60, 250, 600, 1000] {
        let mut actor = start("beginner");
        actor.hear("beginning");
        thread::sleep(Duration::from_millis(moment));
        actor.signal(Signal::KILL);
    }
    let mut last = start("owner");
    let folder = PathBuf::from(last.hear("folder"));
    assert!(folder.starts_with(data.path()));
    assert!(last.end().success());
    wait_until("all servers are gone", || {
        servers_below(data.path()).is_empty()
    });
    wait_until("all processes have ended", || {
        processes_of(data.path()).is_empty()
    });
    let partial = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().contains("partial");
    let templates = fs::read_dir(cache.path().join("templates"))?;
    assert_eq!(templates.flatten().filter(partial).count(), 0);
    Ok(())
}
