//! What only the whole program can know is refused by `start()`, all of it at once, each fault
//! with the file and line of the handlers concerned.

use serde::{Deserialize, Serialize};
use whizbang::{
    Builder, Command, Event, RuntimeConfig, StartError, StartFault, State, handler,
    handler::{Definition, Registered, States},
    idempotent_command,
    registry::{Handlers, discovered},
    testing::MemoryStore,
    transport::InProcess,
};

#[path = "start_faults/schema.rs"]
mod schema;

type HandlerContext<'c> = whizbang::Context<'c, MemoryStore>;

// What an application writes for its handler crates; here the crate of the shared handlers.
whizbang::link!(whizbang_tests);

#[derive(Serialize, Deserialize, Event)]
#[message(name = "faults.happened")]
struct Happened;

/// Claims a name that is taken.
#[derive(Serialize, Deserialize, Event)]
#[message(name = "faults.renamed", alias = "faults.happened")]
struct Renamed;

#[derive(Serialize, Deserialize, Command)]
#[message(name = "faults.do")]
struct Do {
    id: u32,
}

#[derive(Clone)]
struct Mailer;

#[handler]
async fn note(_: Happened) -> anyhow::Result<()> {
    Ok(())
}

#[handler(name = "note")]
async fn note_again(_: Happened) -> anyhow::Result<()> {
    Ok(())
}

#[handler]
async fn note_renamed(_: Renamed) -> anyhow::Result<()> {
    Ok(())
}

#[idempotent_command(key = id)]
async fn execute(command: Do, cx: &mut HandlerContext<'_>) -> anyhow::Result<()> {
    let _ = (command.id, cx);
    Ok(())
}

#[derive(Serialize, Deserialize, Command)]
#[message(name = "faults.undo")]
struct Undo {
    id: u32,
}

/// Has its keys where those of another command are.
#[idempotent_command(key = id, scope = "faults.do")]
async fn undo(command: Undo, cx: &mut HandlerContext<'_>) -> anyhow::Result<()> {
    let _ = (command.id, cx);
    Ok(())
}

#[handler]
async fn execute_as_well(_: Do) -> anyhow::Result<()> {
    Ok(())
}

#[handler(concurrency = 9)]
async fn mail(_: Happened, _: State<Mailer>) -> anyhow::Result<()> {
    Ok(())
}

#[handler]
async fn for_another_store(
    _: Happened,
    cx: &mut whizbang_postgres::HandlerContext<'_>,
) -> anyhow::Result<()> {
    let _ = cx;
    Ok(())
}

fn check(definitions: Vec<Definition>) -> Result<Handlers<MemoryStore>, Vec<StartFault>> {
    let config = RuntimeConfig::default();
    Handlers::check(definitions, &States::default(), &config, Some(8))
}

fn faults(definitions: Vec<Definition>) -> Vec<StartFault> {
    check(definitions).expect_err("these handlers do not fit together")
}

/// `file:line` of the function, looked up in this file.
fn place(function: &str) -> String {
    let head = format!("async fn {function}(");
    let source = include_str!("start_faults.rs");
    let line = source.lines().position(|line| line.starts_with(&head));
    let line = line.expect("the function stands in this file") + 1;
    format!("{}:{line}", file!())
}

#[test]
fn handlers_that_fit_together_are_accepted() {
    let handlers = check(vec![note::definition(), execute::definition()]).unwrap();
    assert_eq!(handlers.len(), 2);
    assert!(handlers.for_command("faults.do").is_some());
}

#[test]
fn two_handlers_of_one_name() {
    let expected = StartFault::SameName {
        name: "note".to_owned(),
        first: place("note"),
        second: place("note_again"),
    };
    let found = faults(vec![note_again::definition(), note::definition()]);
    assert_eq!(found, [expected]);
}

#[test]
fn two_handlers_for_one_command() {
    let expected = StartFault::TwoForCommand {
        command: "faults.do".to_owned(),
        first: place("execute"),
        second: place("execute_as_well"),
    };
    let found = faults(vec![execute_as_well::definition(), execute::definition()]);
    assert_eq!(found, [expected]);
}

#[test]
fn two_types_of_one_wire_name() {
    let expected = StartFault::SameWireName {
        name: "faults.happened".to_owned(),
        first: place("note"),
        second: place("note_renamed"),
    };
    let found = faults(vec![note_renamed::definition(), note::definition()]);
    assert_eq!(found, [expected]);
}

#[test]
fn two_commands_with_their_keys_in_one_scope() {
    let expected = StartFault::SameScope {
        scope: "faults.do".to_owned(),
        first: place("execute"),
        second: place("undo"),
    };
    let found = faults(vec![undo::definition(), execute::definition()]);
    assert_eq!(found, [expected]);
}

#[test]
fn a_missing_state_and_too_much_concurrency() {
    let found = faults(vec![mail::definition()]);
    let [StartFault::MissingState { state, .. }, second] = &found[..] else {
        panic!("{found:?}");
    };
    assert!(state.ends_with("Mailer"), "{state}");
    let text = found[0].to_string();
    assert!(text.contains(&place("mail")), "{text}");
    assert!(text.contains("add `.state(value)`"), "{text}");
    let expected = StartFault::HandlerConcurrency {
        handler: "mail".to_owned(),
        place: place("mail"),
        wanted: 9,
        limit: 8,
    };
    assert_eq!(second, &expected);
}

#[test]
fn a_handler_of_another_store() {
    let found = faults(vec![for_another_store::definition()]);
    let [
        StartFault::WrongStore {
            place: at, store, ..
        },
    ] = &found[..]
    else {
        panic!("{found:?}");
    };
    assert_eq!(at, &place("for_another_store"));
    assert!(store.ends_with("PgStore"), "{store}");
}

#[test]
fn the_same_place_twice_is_one_handler() {
    let found_and_registered = discovered()
        .into_iter()
        .filter(|definition| definition.spec.name == "execute")
        .chain([execute::definition()]);
    let handlers = check(found_and_registered.collect()).unwrap();
    assert_eq!(handlers.len(), 1);
}

mod one_line {
    use super::{Happened, handler};

    macro_rules! two_handlers {
        ($($module:ident $function:ident)*) => {$(
            pub(super) mod $module {
                use super::{Happened, handler};

                #[handler(name = "made_by_a_macro")]
                pub(crate) async fn $function(_: Happened) -> anyhow::Result<()> {
                    Ok(())
                }
            }
        )*};
    }
    two_handlers!(one note other note);
}

#[test]
fn two_functions_that_a_macro_puts_at_one_place_are_two_handlers() {
    let definitions = || {
        [
            one_line::one::note::definition(),
            one_line::other::note::definition(),
        ]
    };
    let [one, other] = definitions();
    assert_eq!(
        (one.spec.file, one.spec.line),
        (other.spec.file, other.spec.line)
    );
    let found = faults(definitions().into());
    assert!(
        matches!(&found[..], [StartFault::SameName { .. }]),
        "{found:?}"
    );
}

#[test]
fn linked_crates_are_discovered() {
    let names: Vec<_> = discovered()
        .iter()
        .map(|definition| definition.spec.name)
        .collect();
    assert!(names.contains(&"mail"), "{names:?}");
    let shared = discovered()
        .iter()
        .any(|definition| definition.spec.path.starts_with("whizbang_tests::"));
    assert!(shared, "{names:?}");
}

async fn refused(builder: Builder<MemoryStore>) -> Vec<StartFault> {
    match builder.start().await {
        Err(StartError::Faults(faults)) => faults,
        Err(other) => panic!("another refusal: {other}"),
        Ok(_) => panic!("the service started"),
    }
}

#[tokio::test]
async fn every_fault_is_in_one_error() {
    let builder = Builder::new(MemoryStore::new().limited_to(8))
        .without_discovery()
        .register::<note>()
        .register::<note_again>()
        .register::<note_renamed>()
        .register::<execute>()
        .register::<execute_as_well>()
        .register::<mail>()
        .register::<for_another_store>()
        .concurrency(9);
    let error = builder.start().await.err().expect("faults");
    let text = error.to_string();
    assert_eq!(format!("{error:?}"), text, "what `main` prints");
    for expected in [
        "concurrency 9 is above the 8 connections of the pool",
        "the service name is empty",
        "two handlers are named `note`",
        "command `faults.do` has two handlers",
        "two types claim the wire name `faults.happened`",
        "asks for `State<",
        "wants concurrency 9, the pool has 8",
        "was written for `whizbang_postgres::",
    ] {
        assert!(text.contains(expected), "{expected} is missing in {text}");
    }
    for function in ["note", "note_again", "note_renamed", "execute", "mail"] {
        assert!(text.contains(&place(function)), "{function} in {text}");
    }
}

#[tokio::test]
async fn destinations_are_there_and_have_names_of_their_own() {
    let builder = Builder::new(MemoryStore::new())
        .service("orders")
        .without_discovery()
        .publish_only()
        .transport(InProcess::new("orders"))
        .route::<Do>("nowhere");
    let found = refused(builder).await;
    let texts: Vec<_> = found.iter().map(ToString::to_string).collect();
    let [route, name] = texts.as_slice() else {
        panic!("{texts:?}");
    };
    assert!(
        route.contains("no destination `nowhere` for message `faults.do`"),
        "{route}"
    );
    assert!(
        name.contains("two destinations are named `orders`"),
        "{name}"
    );
}

#[tokio::test]
async fn no_handlers_at_all_names_the_usual_causes() {
    let builder = Builder::new(MemoryStore::new())
        .service("orders")
        .without_discovery();
    let found = refused(builder).await;
    assert_eq!(found, [StartFault::NoHandlers]);
    let text = found[0].to_string();
    assert!(text.contains("whizbang::link!"), "{text}");
    assert!(text.contains("main.rs does not use it"), "{text}");
}

#[tokio::test]
async fn discovery_linked_crates_and_registration_work_together() {
    let builder = || Builder::new(MemoryStore::new().limited_to(8)).service("orders");
    // Discovered here and in the linked crate, and one of them registered as well.
    let found = refused(builder().register::<note>().expect_handlers(0)).await;
    let listed = found.iter().find_map(|fault| match fault {
        StartFault::HandlerCount { found, names, .. } => Some((*found, names.clone())),
        _ => None,
    });
    let (count, names) = listed.expect("the count is among the other faults");
    let discovered = discovered();
    assert_eq!(count, discovered.len(), "{names}");
    let names: Vec<_> = names.split(", ").collect();
    for definition in &discovered {
        assert!(names.contains(&definition.spec.name), "{names:?}");
    }
    let linked = |definition: &&Definition| definition.spec.path.starts_with("whizbang_tests::");
    assert!(discovered.iter().filter(linked).count() > 0, "{names:?}");
    assert!(found.len() > 1, "this program has other faults: {found:?}");
}

#[tokio::test]
async fn more_handlers_than_expected() {
    let builder = Builder::new(MemoryStore::new())
        .service("orders")
        .without_discovery()
        .register::<note>()
        .register::<execute>()
        .expect_handlers(3);
    let expected = StartFault::HandlerCount {
        expected: 3,
        found: 2,
        names: "execute, note".to_owned(),
    };
    assert_eq!(refused(builder).await, [expected]);
}
