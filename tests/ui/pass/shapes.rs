//! Every shape a handler can have.

use serde::{Deserialize, Serialize};
use whizbang::{
    Event, Metadata, OnDead, Payload, State, handler,
    handler::{Call, Definition, Inputs, Registered, Requirement, States},
};
use whizbang_postgres::{HandlerContext, LazyContext, PgStore};

#[derive(Debug, Serialize, Deserialize, Event)]
#[message(name = "shapes.counted")]
pub(crate) struct Counted {
    count: u32,
}

#[derive(Clone)]
struct Mailer {
    from: &'static str,
}

#[handler]
async fn plain(event: Counted) -> Result<(), std::io::Error> {
    assert!(event.count > 0);
    Ok(())
}

#[handler]
async fn with_context(event: Counted, cx: &mut HandlerContext<'_>) -> anyhow::Result<()> {
    sqlx::query("SELECT 1").execute(cx.conn()).await?;
    cx.publish(&event).await?;
    Ok(())
}

#[handler]
async fn with_lazy_context(
    event: Counted,
    meta: &Metadata,
    lazy: &mut LazyContext<'_>,
) -> Result<(), whizbang::BoxError> {
    let _ = meta.attempt;
    lazy.begin().await?.publish(&event).await?;
    Ok(())
}

/// Reports what it was given as its error.
#[handler]
async fn with_arguments(
    Counted { count }: Counted,
    State(mailer): State<Mailer>,
    meta: &Metadata,
    State(greeting): State<String>,
) -> Result<(), String> {
    Err(format!(
        "{count} {} {} {greeting}",
        mailer.from, meta.handler
    ))
}

#[handler(
    name = "all-options",
    lane = "counts",
    max_attempts = 5,
    backoff = "250ms..5m",
    timeout = "1h",
    concurrency = 8,
    on_dead = "park"
)]
async fn with_all_options(_: Counted) -> anyhow::Result<()> {
    Ok(())
}

#[handler(on_dead = "continue")]
pub(crate) async fn visible_in_the_crate(_event: Counted) -> anyhow::Result<()> {
    Ok(())
}

#[handler]
pub(super) async fn r#move(event: Counted) -> anyhow::Result<()> {
    let _ = event;
    Ok(())
}

#[handler]
#[tracing::instrument(skip_all)]
#[expect(unused_variables, reason = "attributes stay with the function")]
async fn with_attributes(event: Counted) -> anyhow::Result<()> {
    Ok(())
}

#[cfg(any())]
#[handler]
async fn conditional(event: NoSuchType) -> anyhow::Result<()> {
    Ok(())
}

#[handler]
#[cfg(any())]
async fn conditional_below(event: NoSuchType) -> anyhow::Result<()> {
    Ok(())
}

#[deprecated]
#[handler]
async fn deprecated(event: Counted) -> anyhow::Result<()> {
    let _ = event;
    Ok(())
}

macro_rules! handlers {
    ($($name:ident: $message:ty),*) => {$(
        #[handler]
        async fn $name(event: $message, cx: &mut HandlerContext<'_>) -> anyhow::Result<()> {
            let _ = (event, cx.metadata());
            Ok(())
        }
    )*};
}
handlers!(made_by_a_macro: Counted, made_by_it_as_well: Counted);

fn nested_definition() -> Definition {
    #[handler]
    async fn nested(event: Counted) -> anyhow::Result<()> {
        let _ = event;
        Ok(())
    }
    nested::definition()
}

#[tokio::test]
async fn a_handler_stays_a_function() {
    plain(Counted { count: 1 }).await.unwrap();
    let boxed: Result<(), String> = with_arguments(
        Counted { count: 2 },
        State(Mailer { from: "shop" }),
        &metadata("direct"),
        State("hello".to_owned()),
    )
    .await;
    assert_eq!(boxed, Err("2 shop direct hello".to_owned()));
}

#[tokio::test]
async fn the_runtime_hands_arguments_over_by_position() {
    let definition = with_arguments::definition();
    let Ok(Call::Plain(call)) = definition.call.resolve::<PgStore>() else {
        panic!("a handler without context runs on every store");
    };
    let payload = Payload::from_json(r#"{"count": 7}"#).unwrap();
    let metadata = metadata("with_arguments");
    let mut states = States::default();
    states.insert(Mailer { from: "shop" });
    let failure = call(Inputs::new(&payload, &metadata, &states)).await;
    let failure = whizbang::error_chain(&failure.unwrap_err());
    assert!(failure.contains("no state of type"), "{failure}");

    states.insert("hello".to_owned());
    let failure = call(Inputs::new(&payload, &metadata, &states)).await;
    let failure = whizbang::error_chain(&failure.unwrap_err());
    assert!(
        failure.ends_with("7 shop with_arguments hello"),
        "{failure}"
    );

    let payload = Payload::from_json("[]").unwrap();
    let failure = call(Inputs::new(&payload, &metadata, &states)).await;
    let failure = whizbang::error_chain(&failure.unwrap_err());
    assert!(failure.contains("does not fit message type"), "{failure}");
}

#[test]
fn the_context_decides_how_a_handler_is_run() {
    let call = |definition: Definition| definition.call.resolve::<PgStore>();
    assert!(matches!(call(plain::definition()), Ok(Call::Plain(_))));
    let with_context = call(with_context::definition());
    assert!(matches!(with_context, Ok(Call::Transaction(_))));
    let with_lazy_context = call(with_lazy_context::definition());
    assert!(matches!(with_lazy_context, Ok(Call::Lazy(_))));
}

#[test]
fn facts_are_those_of_the_source() {
    let spec = with_context::definition().spec;
    assert_eq!(spec.name, "with_context");
    assert_eq!(spec.message, "shapes.counted");
    assert!(spec.path.ends_with("shapes::with_context"), "{}", spec.path);
    assert!(spec.file.ends_with("shapes.rs"), "{}", spec.file);
    let source = include_str!("shapes.rs");
    let line = source.lines().nth(spec.line as usize - 1).unwrap();
    assert!(line.contains("async fn with_context"), "{line}");
    assert_eq!(r#move::definition().spec.name, "move");
    let nested = nested_definition().spec;
    assert_eq!(nested.name, "nested");
    assert_eq!(made_by_a_macro::definition().spec.name, "made_by_a_macro");
    assert_eq!(
        made_by_it_as_well::definition().spec.name,
        "made_by_it_as_well"
    );
}

#[test]
fn options_arrive() {
    use std::time::Duration;
    let spec = with_all_options::definition().spec;
    assert_eq!(spec.name, "all-options");
    assert_eq!(spec.lane(), "counts");
    assert_eq!(spec.options.max_attempts, Some(5));
    let backoff = (Duration::from_millis(250), Duration::from_secs(300));
    assert_eq!(spec.options.backoff, Some(backoff));
    assert_eq!(spec.options.timeout, Some(Duration::from_secs(3600)));
    assert_eq!(spec.options.concurrency, Some(8));
    assert_eq!(spec.options.on_dead, OnDead::Park);
    assert_eq!(
        visible_in_the_crate::definition().spec.options,
        whizbang::handler::HandlerOptions::NONE
    );
}

#[test]
fn states_are_required_and_metadata_is_not() {
    let requirements = with_arguments::definition().requirements;
    let states: Vec<_> = requirements
        .iter()
        .filter_map(|requirement| match requirement {
            Requirement::State { name, .. } => Some(*name),
            Requirement::Nothing => None,
        })
        .collect();
    assert_eq!(states.len(), 2, "{states:?}");
    assert!(states[0].ends_with("Mailer"), "{states:?}");
    assert!(with_context::definition().requirements.is_empty());
}

#[test]
fn every_handler_is_discovered() {
    let mut names: Vec<_> = whizbang::registry::discovered()
        .iter()
        .filter(|definition| definition.spec.message == "shapes.counted")
        .map(|definition| definition.spec.name)
        .collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "all-options",
            "deprecated",
            "made_by_a_macro",
            "made_by_it_as_well",
            "move",
            "nested",
            "plain",
            "visible_in_the_crate",
            "with_arguments",
            "with_attributes",
            "with_context",
            "with_lazy_context",
        ]
    );
}

fn metadata(handler: &str) -> Metadata {
    Metadata {
        message_id: uuid::Uuid::now_v7(),
        message_type: "shapes.counted".to_owned(),
        handler: handler.to_owned(),
        stream: None,
        correlation_id: None,
        causation_id: None,
        attempt: 1,
        received_at: None,
        headers: whizbang::Headers::default(),
    }
}
