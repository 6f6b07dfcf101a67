//! A crate that calls its dependency `wb`, and says so nowhere but in its manifest.

#![deny(warnings, missing_docs, clippy::pedantic)]

use serde::{Deserialize, Serialize};
use store::HandlerContext;
use wb::{Command, Event, State, handler, idempotent_command};

/// An event.
#[derive(Debug, Serialize, Deserialize, Event)]
#[message(name = "renamed.happened", stream = id)]
pub struct Happened {
    id: u8,
}

/// A command.
#[derive(Debug, Serialize, Deserialize, Command)]
#[message(name = "renamed.do", reply = u8)]
pub struct Do {
    id: u8,
}

/// Handles the event.
///
/// # Errors
/// When the state is nothing.
#[handler(max_attempts = 3)]
pub async fn note(event: Happened, State(state): State<u8>) -> Result<(), String> {
    if state == 0 {
        return Err(format!("nothing for {}", event.id));
    }
    Ok(())
}

/// Executes the command.
///
/// # Errors
/// When the event cannot be published.
#[idempotent_command(key = id)]
pub async fn execute(command: Do, cx: &mut HandlerContext<'_>) -> anyhow::Result<u8> {
    cx.publish(&Happened { id: command.id }).await?;
    Ok(command.id)
}

#[cfg(test)]
mod tests {
    use wb::handler::Registered;

    use super::{execute, note};

    #[test]
    fn handlers_are_registered_under_the_new_name() {
        assert_eq!(note::definition().spec.name, "note");
        let names: Vec<_> = wb::registry::discovered()
            .iter()
            .map(|definition| definition.spec.name)
            .collect();
        assert!(names.contains(&"note"), "{names:?}");
        assert!(names.contains(&"execute"), "{names:?}");
        assert!(execute::definition().command.is_some());
    }
}
