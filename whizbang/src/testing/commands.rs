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
    store::{CommandRun, CommandState, Isolation, StoreResult},
};

/// Writes the key, or finds what is known of it. Never waits: a key at work is busy.
pub(super) fn begin(
    tables: &mut Tables,
    open: &mut Open,
    run: &CommandRun,
    now: Time,
) -> Turn<StoreResult<CommandState>> {
    let (scope, key) = (run.scope.clone(), run.key.as_str().to_owned());
    let unit = Unit::Command(scope.clone(), key.clone());
    let busy = tables.locks.take(unit, open.tx) != Asked::Granted;
    let seen = open.snapshot.unwrap_or(tables.commits);
    let invisible =
        |known: &CommandResult| open.isolation != Isolation::ReadCommitted && known.commit > seen;
    match find(tables, open, run) {
        Some(known) if invisible(&known) && !busy => {
            return Turn::Done(Ok(CommandState::Isolated));
        }
        Some(known) if !invisible(&known) => return Turn::Done(Ok(executed(known, run))),
        _ if busy => return Turn::Done(Ok(CommandState::Busy)),
        _ => {}
    }
    let result = CommandResult {
        fingerprint: run.fingerprint.to_vec(),
        result: None,
        created_at: now,
        commit: 0,
    };
    open.writes.push(Write::Command {
        scope,
        key,
        result: Box::new(result),
    });
    Turn::Done(Ok(CommandState::Fresh))
}

fn executed(known: CommandResult, run: &CommandRun) -> CommandState {
    if known.fingerprint == run.fingerprint {
        CommandState::Done(known.result)
    } else {
        CommandState::Reused {
            stored: known.fingerprint,
        }
    }
}

/// Writes the reply beside the key.
pub(super) fn finish(
    tables: &Tables,
    open: &mut Open,
    run: &CommandRun,
    reply: Option<&str>,
) -> Turn<StoreResult<()>> {
    let Some(known) = find(tables, open, run) else {
        return Turn::Done(Err(StoreError::message(
            StoreErrorKind::Other,
            "the command's key was not written in this transaction",
        )));
    };
    let result = CommandResult {
        result: reply.map(str::to_owned),
        ..known
    };
    open.writes.push(Write::Command {
        scope: run.scope.clone(),
        key: run.key.as_str().to_owned(),
        result: Box::new(result),
    });
    Turn::Done(Ok(()))
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
