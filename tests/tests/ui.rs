//! What compiles and what does not, and what is said about it.
//!
//! Each file in `ui/fail` is refused with the text recorded beside it; `TRYBUILD=overwrite` records
//! it anew. Each file in `ui/pass` is a module of this test and asserts what it declares.

#[path = "../ui/pass"]
mod pass {
    mod collisions;
    mod commands;
    mod hostile;
    mod lints;
    mod messages;
    mod names;
    mod renamed;
    mod shapes;
    mod spawned;
}

use std::process::Command;

/// The compiler whose messages are recorded.
const RECORDED: &str = "rustc 1.95.";

#[test]
fn misuse_is_refused_with_our_words() {
    let version = rustc_version();
    if !version.starts_with(RECORDED) && std::env::var_os("REQUIRE_UI_TESTS").is_none() {
        println!("SKIPPED: messages are recorded for {RECORDED}*, this is {version}");
        println!("set REQUIRE_UI_TESTS=1 to compare them nevertheless");
        return;
    }
    trybuild::TestCases::new().compile_fail("ui/fail/*.rs");
}

/// A page that quotes messages which nobody gets is worse than none.
#[test]
fn the_page_of_errors_quotes_recorded_messages() {
    let page = include_str!("../../whizbang/docs/compile-errors.md");
    let recorded = recorded_messages();
    let mut quoted = 0;
    for line in page.lines().filter(|line| line.starts_with("error")) {
        quoted += 1;
        let is_recorded = recorded.lines().any(|message| message == line);
        assert!(is_recorded, "no case in ui/fail says: {line}");
    }
    assert!(quoted >= 10, "the page quotes {quoted} messages");
}

fn recorded_messages() -> String {
    let cases = concat!(env!("CARGO_MANIFEST_DIR"), "/ui/fail");
    let files = std::fs::read_dir(cases).expect("the folder of cases");
    files
        .map(|file| file.expect("a case").path())
        .filter(|path| path.extension().is_some_and(|end| end == "stderr"))
        .map(|path| std::fs::read_to_string(path).expect("a recorded message"))
        .collect()
}

fn rustc_version() -> String {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let output = Command::new(rustc)
        .arg("--version")
        .output()
        .expect("rustc runs");
    String::from_utf8(output.stdout).expect("UTF-8")
}
