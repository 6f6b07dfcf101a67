//! Half a minute of chaos; `cargo xtask chaos --minutes N` runs it for longer.

use std::process::{Command, Stdio};

/// Each round of faults has every kind in it, and a round fits into the time.
const MINUTES: &str = "0.5";

/// Figures that must not be zero, or the run has shown nothing.
const HAPPENED: [&str; 8] = [
    "transfers asked for",
    "of them repeats",
    "duplicates recognised (at least)",
    "handler runs that failed (at least)",
    "workers killed (SIGKILL)",
    "workers stopped past their lease",
    "PostgreSQL killed and restarted",
    "dead letters, all of them meant",
];

#[test]
fn half_a_minute_of_chaos_loses_and_doubles_nothing() {
    let output = Command::new(env!("CARGO_BIN_EXE_chaos"))
        .args(["--minutes", MINUTES])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .expect("the program runs");
    let printed = String::from_utf8(output.stdout).expect("text");
    println!("{printed}");
    assert!(output.status.success(), "{}", output.status);
    assert_eq!(
        printed.lines().last(),
        Some("chaos: lost 0, doubled 0, out of order 0")
    );
    for what in HAPPENED {
        let line = printed.lines().find(|line| line.contains(what));
        let count = line.and_then(|line| line.split_whitespace().last());
        let count: u64 = count.and_then(|it| it.parse().ok()).expect("a figure");
        assert!(count > 0, "{what}: nothing happened");
    }
}
