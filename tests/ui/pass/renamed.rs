//! Our crate under another name.

use serde::{Deserialize, Serialize};
use whizbang_postgres::HandlerContext;

mod dependencies {
    pub(crate) use whizbang as wb;
}

mod whizbang {}

use dependencies::wb;

#[derive(Serialize, Deserialize, wb::Event)]
#[message(name = "renamed.event", stream = id, crate = wb)]
struct Event {
    id: u8,
}

#[derive(Serialize, Deserialize, wb::Command)]
#[message(name = "renamed.command", crate = crate::pass::renamed::dependencies::wb)]
struct Command {
    id: u8,
}

#[wb::handler(crate = wb, max_attempts = 2)]
async fn handle(event: Event, cx: &mut HandlerContext<'_>) -> anyhow::Result<()> {
    let _ = cx;
    let _ = event;
    Ok(())
}

#[wb::idempotent_command(key = id, crate = self::dependencies::wb)]
async fn execute(command: Command, cx: &mut HandlerContext<'_>) -> anyhow::Result<()> {
    let _ = (command, cx);
    Ok(())
}
