//! The cached template that servers are copied from.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use crate::support::{Actor, Outcome, open_folder};

fn start_once(cache: &TempDir) {
    let mut actor = owner(cache);
    actor.hear("folder");
    assert!(actor.end().success());
}

fn owner(cache: &TempDir) -> Actor {
    let program = env::current_exe().unwrap();
    Actor::start_with("owner", &program, |command| {
        command.env("WHIZBANG_CACHE_DIR", cache.path())
    })
}

/// The folders of templates, whole or not.
fn templates(cache: &TempDir) -> Vec<PathBuf> {
    fs::read_dir(cache.path().join("templates"))
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect()
}

fn made_at(template: &Path) -> std::time::SystemTime {
    fs::metadata(template.join("whizbang-seal"))
        .and_then(|meta| meta.modified())
        .unwrap()
}

#[test]
fn a_template_is_made_once() {
    let cache = open_folder();
    start_once(&cache);
    let first = templates(&cache);
    assert_eq!(first.len(), 1);
    let made = made_at(&first[0]);
    start_once(&cache);
    assert_eq!(templates(&cache), first);
    assert_eq!(made_at(&first[0]), made);
}

#[test]
fn servers_that_start_at_once_make_one_template() {
    let cache = open_folder();
    let mut actors: Vec<_> = (0..3).map(|_| owner(&cache)).collect();
    for actor in &mut actors {
        actor.hear("folder");
    }
    assert_eq!(templates(&cache).len(), 1);
}

#[test]
fn a_template_cut_short_is_made_again() -> Outcome {
    let cache = open_folder();
    start_once(&cache);
    let template = templates(&cache).remove(0);
    let damages: [fn(&Path) -> std::io::Result<()>; 4] = [
        |template| fs::remove_file(template.join("whizbang-seal")),
        |template| fs::write(template.join("whizbang-seal"), ""),
        |template| fs::remove_file(template.join("data/global/pg_control")),
        |template| {
            fs::File::options()
                .write(true)
                .open(template.join("data/global/pg_control"))?
                .set_len(100)
        },
    ];
    for damage in damages {
        damage(&template)?;
        // What a process that was killed while it copied has left.
        let mut partial = template.clone().into_os_string();
        partial.push(".partial-abc");
        fs::create_dir_all(Path::new(&partial).join("data/base"))?;
        start_once(&cache);
        assert_eq!(templates(&cache), [&*template]);
    }
    Ok(())
}
