//! Running cargo and the programs it builds.

use std::{
    env,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Command, ExitCode, ExitStatus},
};

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};

/// The cargo that runs us, in the workspace's folder.
pub(crate) fn cargo() -> Command {
    let program = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(workspace());
    command
}

/// The folder above this package.
pub(crate) fn workspace() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own)
}

/// The platform that this machine builds for.
pub(crate) fn host() -> anyhow::Result<String> {
    let program = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(program)
        .arg("-vV")
        .current_dir(workspace())
        .output()
        .context("could not run rustc")?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let host = printed.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned)
        .context("rustc does not say for which platform it builds")
}

/// Runs a program to its end, through `Ctrl-C`: the terminal sends that to the program as well,
/// which then needs its database for as long as it takes to end in order.
pub(crate) fn exit_code(command: &mut Command) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .context("could not start a runtime to listen for signals")?;
    let _inside = runtime.enter();
    let _listening = signal(SignalKind::interrupt()).context("could not listen for Ctrl-C")?;
    let status = command
        .status()
        .with_context(|| format!("could not run {}", command.get_program().display()))?;
    Ok(as_exit_code(status))
}

/// The program's own code, or what a shell reports for one that was killed.
fn as_exit_code(status: ExitStatus) -> ExitCode {
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => 1,
    };
    u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from)
}
