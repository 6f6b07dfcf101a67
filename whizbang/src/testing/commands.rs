//! Keys of idempotent commands.

use super::{
    clock::Time,
    locks::{Asked, Unit},
    memory::Turn,
    session::Open,
    tables::{CommandResult, Tables},
    writes::Write,
};
use crate::{
    StoreError, StoreErrorKind,
    store::{CommandAnswer, CommandRun, CommandState, Isolation, StoreResult},
};

/// Writes the key, or finds what is known of it. Never waits: a key at work is busy.
pub(super) fn begin(
    tables: &mut Tables,
    open: &mut Open,
    run: &CommandRun,
    now: Time,
) -> Turn<StoreResult<CommandState>> {
    let isolated = open.isolation != Isolation::ReadCommitted;
    let seen = open.snapshot.unwrap_or(tables.commits);
    match find(tables, open, run) {
        Some(known) if isolated && known.commit > seen => {
            return Turn::Done(Ok(CommandState::Isolated));
        }
        Some(known) => return Turn::Done(Ok(executed(known, run))),
        None => {}
    }
    let (scope, key) = (run.scope.clone(), run.key.as_str().to_owned());
    let unit = Unit::Command(scope.clone(), key.clone());
    if tables.locks.take(unit, open.tx) != Asked::Granted {
        return Turn::Done(Ok(match isolated {
            true => CommandState::Isolated,
            false => CommandState::Busy,
        }));
    }
    let result = CommandResult {
        fingerprint: run.fingerprint.to_vec(),
        answer: None,
        created_at: now,
        commit: 0,
    };
    open.commands.push((scope.clone(), key.clone()));
    open.writes.push(Write::Command {
        scope,
        key,
        result: Box::new(result),
    });
    Turn::Done(Ok(CommandState::Fresh))
}

fn executed(known: CommandResult, run: &CommandRun) -> CommandState {
    match known.answer {
        None => CommandState::Unfinished,
        Some(answer) if known.fingerprint == run.fingerprint => CommandState::Done(answer),
        Some(_) => CommandState::Reused {
            stored: known.fingerprint,
        },
    }
}

/// Writes beside the key what the command came to.
pub(super) fn finish(
    tables: &Tables,
    open: &mut Open,
    run: &CommandRun,
    answer: &CommandAnswer,
) -> Turn<StoreResult<bool>> {
    let begun = open.commands.pop();
    let is_own = |(scope, key): &(String, String)| *scope == run.scope && key == run.key.as_str();
    if !begun.as_ref().is_some_and(is_own) {
        open.commands.extend(begun);
        return Turn::Done(Ok(false));
    }
    let Some(known) = find(tables, open, run) else {
        return Turn::Done(Err(StoreError::message(
            StoreErrorKind::Other,
            "the command's key was not written in this transaction",
        )));
    };
    let result = CommandResult {
        answer: Some(answer.clone()),
        ..known
    };
    open.writes.push(Write::Command {
        scope: run.scope.clone(),
        key: run.key.as_str().to_owned(),
        result: Box::new(result),
    });
    Turn::Done(Ok(true))
}

fn find(tables: &Tables, open: &Open, run: &CommandRun) -> Option<CommandResult> {
    let own = open.writes.iter().rev().find_map(|write| match write {
        Write::Command { scope, key, result } if *scope == run.scope && key == run.key.as_str() => {
            Some((**result).clone())
        }
        _ => None,
    });
    own.or_else(|| {
        let place = (run.scope.clone(), run.key.as_str().to_owned());
        tables.commands.get(&place).cloned()
    })
}
