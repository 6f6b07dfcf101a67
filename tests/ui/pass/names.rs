//! User types named like ours, and `anyhow::Context` beside our imports.

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use whizbang::{handler, idempotent_command};
use whizbang_postgres::HandlerContext;

/// The order's own state, not ours.
#[derive(Serialize, Deserialize)]
enum State {
    Open,
}

#[derive(Serialize, Deserialize, whizbang::Event)]
#[message(name = "names.event")]
struct Event {
    state: State,
}

#[derive(Serialize, Deserialize, whizbang::Command)]
#[message(name = "names.command", reply = State)]
struct Command {
    id: u32,
}

type Result<T> = anyhow::Result<T>;

/// The user's alias for what handlers take.
type Context<'c> = HandlerContext<'c>;

#[handler]
async fn handle(event: Event, cx: &mut Context<'_>) -> Result<()> {
    let State::Open = event.state;
    sqlx::query("SELECT 1")
        .execute(cx.conn())
        .await
        .context("failed to select")?;
    Ok(())
}

#[idempotent_command(key = id)]
async fn execute(command: Command, cx: &mut Context<'_>) -> Result<State> {
    let _ = (command.id, cx);
    Ok(State::Open)
}

mod with_the_trait_in_scope {
    use anyhow::Context;
    use whizbang::{Event, State, handler};
    use whizbang_postgres::HandlerContext;

    #[derive(serde::Serialize, serde::Deserialize, Event)]
    #[message(name = "names.event_in_module")]
    pub(crate) struct InModule;

    #[handler]
    pub(crate) async fn handle_in_module(
        _: InModule,
        State(limit): State<u32>,
        cx: &mut HandlerContext<'_>,
    ) -> anyhow::Result<()> {
        cx.publish(&InModule).await.context("failed to publish")?;
        u8::try_from(limit).context("too high")?;
        Ok(())
    }
}

#[test]
fn both_can_be_named_for_registration() {
    use whizbang::handler::Registered;
    assert_eq!(handle::definition().spec.name, "handle");
    let in_module = with_the_trait_in_scope::handle_in_module::definition();
    assert_eq!(in_module.spec.name, "handle_in_module");
}
