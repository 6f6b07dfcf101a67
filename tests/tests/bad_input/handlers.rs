//! Handlers that misbehave.

use whizbang_tests::{Ping, Step, World};

use super::support::{ATTEMPTS, goes_on, letters, start};

/// What became of a message whose handler does this at every attempt.
struct Ending {
    reason: &'static str,
    attempts: u32,
    told: &'static str,
}

/// Runs a message into its dead letter. Nothing that the handler wrote may be left, and its
/// neighbour must have handled the same message as usual.
async fn ends(step: Step, ending: Ending) {
    let world = World::new().await;
    world.script.steps(1, [step; 10]);
    let app = start(&world).await;
    let id = world.feed(&Ping { number: 1 });
    let letters = letters(&world, &app, 1).await;
    let letter = &letters[0];
    assert_eq!(letter.message_id, Some(id));
    assert_eq!(letter.handler.as_deref(), Some("scripted"));
    assert_eq!(
        (letter.reason.as_str(), letter.attempts),
        (ending.reason, ending.attempts),
        "{step:?}"
    );
    let error = letter.error.clone().unwrap_or_default();
    assert!(error.contains(ending.told), "{error}");
    let left = i64::from(step == Step::Commit);
    assert_eq!(world.effects("scripted", 1).await, left, "{step:?}");
    goes_on(&world).await;
    assert_eq!(world.effects("note_twice", 1).await, 1, "its neighbour");
    app.shutdown().await.expect("shutdown");
}

const fn failed(told: &'static str) -> Ending {
    Ending {
        reason: "failed",
        attempts: ATTEMPTS,
        told,
    }
}

#[tokio::test]
async fn an_error() {
    ends(Step::Fail, failed("the script says fail")).await;
}

#[tokio::test]
async fn a_panic() {
    ends(Step::Panic, failed("panicked: the script says panic")).await;
}

#[tokio::test]
async fn a_handler_that_never_returns() {
    ends(
        Step::Hang,
        failed("did not finish within its timeout of 2s"),
    )
    .await;
}

#[tokio::test]
async fn a_statement_that_never_ends() {
    ends(Step::SlowStatement, failed("timeout")).await;
}

#[tokio::test]
async fn a_permanent_error() {
    let ending = Ending {
        reason: "permanent",
        attempts: 1,
        told: "the script says never",
    };
    ends(Step::Permanent, ending).await;
}

#[tokio::test]
async fn a_database_error_that_was_swallowed() {
    let told = "returned Ok although a statement in its transaction had failed";
    ends(Step::Swallow, failed(told)).await;
}

#[tokio::test]
async fn a_commit_of_its_own() {
    let ending = Ending {
        reason: "unfenced",
        attempts: 1,
        told: "ended its own transaction",
    };
    ends(Step::Commit, ending).await;
}

#[tokio::test]
async fn an_error_text_with_quotes_newlines_nul_and_a_megabyte_of_length() {
    let told = "it's \"bad\"\nand\u{FFFD}worse";
    ends(Step::HugeError, failed(told)).await;
}

#[tokio::test]
async fn a_huge_error_text_is_cut() {
    let world = World::new().await;
    world.script.steps(1, [Step::HugeError; 10]);
    let app = start(&world).await;
    world.feed(&Ping { number: 1 });
    let letters = letters(&world, &app, 1).await;
    let error = letters[0].error.clone().expect("the chain of errors");
    let limit = whizbang::MAX_ERROR_BYTES;
    assert!(
        (limit..limit + 50).contains(&error.len()),
        "{}",
        error.len()
    );
    assert!(error.ends_with("(cut)"), "it says so");
    app.shutdown().await.expect("shutdown");
}
