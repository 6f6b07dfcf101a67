//! What the tests have in common: processes that play a part, and looking for remains.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;

pub(crate) type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Long enough for a busy machine: it is only waited for in full by a test that fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for a condition, and fails the test with `what` when it does not come.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A folder that everybody can get to, as a user's temporary folder is.
pub(crate) fn open_folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// This test program once more, in a process of its own, playing one of the [`crate::actors`].
pub(crate) struct Actor {
    child: Child,
    stdin: Option<ChildStdin>,
    output: BufReader<std::process::ChildStdout>,
}

impl Actor {
    pub(crate) fn start(part: &str) -> Self {
        Self::start_with(part, &env::current_exe().unwrap(), |command| command)
    }

    /// Starts a copy of the test program in a changed environment.
    pub(crate) fn start_with(
        part: &str,
        program: &Path,
        change: impl FnOnce(&mut Command) -> &mut Command,
    ) -> Self {
        let mut command = Command::new(program);
        command
            .args(["--exact", &format!("actors::{part}")])
            .args(["--ignored", "--nocapture", "--quiet"])
            .env_remove("DATABASE_URL")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = change(&mut command).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self {
            stdin: child.stdin.take(),
            child,
            output,
        }
    }

    /// What the actor says next after `topic: `.
    #[track_caller]
    pub(crate) fn hear(&mut self, topic: &str) -> String {
        let mark = format!("{topic}: ");
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            if let Some(said) = line.trim_end().strip_prefix(&mark) {
                return said.to_owned();
            }
            line.clear();
        }
        panic!("the actor ended without saying `{topic}`");
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Lets the actor go on; it waits for its standard input to end.
    pub(crate) fn cue(&mut self) {
        self.stdin = None;
    }

    pub(crate) fn end(mut self) -> ExitStatus {
        self.cue();
        self.child.wait().unwrap()
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // A test that failed must not leave its actors; one that is over has none.
        let _over = (self.child.kill(), self.child.wait());
    }
}

/// Changes a command to run as an ordinary user: as `nobody` when we are root.
pub(crate) fn as_ordinary_user(command: &mut Command) -> &mut Command {
    if geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    command
}

/// Every process whose working folder or command line lies in a folder.
pub(crate) fn processes_of(folder: &Path) -> Vec<String> {
    let text = folder.to_string_lossy().into_owned();
    let Ok(entries) = fs::read_dir("/proc") else {
        let listed = Command::new("ps").args(["-axo", "command"]).output();
        let listed = String::from_utf8_lossy(&listed.unwrap().stdout).into_owned();
        return listed
            .lines()
            .filter(|line| line.contains(&text))
            .map(str::to_owned)
            .collect();
    };
    entries
        .flatten()
        .filter_map(|process| {
            let line = fs::read(process.path().join("cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let stands = fs::read_link(process.path().join("cwd")).unwrap_or_default();
            let inside = stands.starts_with(folder) || line.contains(&text);
            inside.then_some(format!("{:?} {line}", process.file_name()))
        })
        .collect()
}

/// The process id of a server's supervisor.
pub(crate) fn supervisor_of(folder: &Path) -> Pid {
    let script = folder.join("supervisor.sh");
    let found = processes_of(&script);
    let first = found.first().expect("the server has a supervisor");
    let number = first.split('"').nth(1).unwrap().parse().unwrap();
    Pid::from_raw(number).unwrap()
}

/// Fails unless a server's folder and processes go.
#[track_caller]
pub(crate) fn assert_gone(folder: &Path) {
    wait_until("the server's folder is removed", || !folder.exists());
    wait_until("the server's processes end", || {
        processes_of(folder).is_empty()
    });
}

/// The shared memory segment that a running server has, as the kernel numbers it.
pub(crate) fn shared_memory_of(folder: &Path) -> String {
    let text = fs::read_to_string(folder.join("data/postmaster.pid")).unwrap();
    let line = text.lines().nth(6).unwrap();
    line.split_whitespace().nth(1).unwrap().to_owned()
}

/// Whether the kernel still has a shared memory segment.
pub(crate) fn has_shared_memory(segment: &str) -> bool {
    let Ok(list) = fs::read_to_string("/proc/sysvipc/shm") else {
        return false;
    };
    list.lines()
        .any(|line| line.split_whitespace().nth(1) == Some(segment))
}

/// Lets everybody write into a folder, as into a temporary folder.
pub(crate) fn give_to_everybody(folder: &Path) {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o1777)).unwrap();
}

/// Our folders below a folder.
pub(crate) fn servers_below(base: &Path) -> Vec<PathBuf> {
    fs::read_dir(base)
        .unwrap()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("whizbang-"))
        .map(|entry| entry.path())
        .collect()
}
