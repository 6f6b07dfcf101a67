//! The worker processes: started, killed, stopped, woken and replaced.

use std::{
    os::unix::process::ExitStatusExt,
    process::{ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use rand::{RngExt, rngs::StdRng};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::AsyncWriteExt,
    process::{Child, Command},
};

/// Which services run, and in how many processes.
const CREW: [&str; 5] = ["bank", "bank", "bank", "clearing", "clearing"];

/// How long a worker may take to stop in good order; longer than its own deadline.
const STOP_WITHIN: Duration = Duration::from_secs(20);

struct Worker {
    service: &'static str,
    child: Child,
    /// It stands still until then.
    stopped_until: Option<Instant>,
    /// Its end is our doing.
    ending: bool,
}

/// What became of the workers.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Losses {
    pub(crate) kills: u64,
    pub(crate) stops: u64,
    pub(crate) aborts: u64,
    pub(crate) restarts: u64,
}

/// All workers of a run.
pub(crate) struct Fleet {
    broker: String,
    database: String,
    workers: Vec<Worker>,
    next: usize,
    pub(crate) losses: Losses,
}

impl Fleet {
    /// Starts a process for each place.
    pub(crate) fn start(broker: &str, database: &str) -> anyhow::Result<Self> {
        let mut fleet = Self {
            broker: broker.to_owned(),
            database: database.to_owned(),
            workers: Vec::new(),
            next: 0,
            losses: Losses::default(),
        };
        for service in CREW {
            let worker = fleet.spawn(service)?;
            fleet.workers.push(worker);
        }
        Ok(fleet)
    }

    /// This very program, with the hidden subcommand.
    fn spawn(&mut self, service: &'static str) -> anyhow::Result<Worker> {
        let program = std::env::current_exe().context("the program cannot find itself")?;
        let child = Command::new(program)
            .arg("worker")
            .args(["--service", service])
            .args(["--number", &self.next.to_string()])
            .args(["--broker", &self.broker])
            .args(["--database", &self.database])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("a worker could not be started")?;
        self.next += 1;
        Ok(Worker {
            service,
            child,
            stopped_until: None,
            ending: false,
        })
    }

    /// Wakes whose time has come and replaces who has died.
    pub(crate) fn tend(&mut self) -> anyhow::Result<()> {
        for place in 0..self.workers.len() {
            let worker = &mut self.workers[place];
            if worker.stopped_until.is_some_and(|it| it <= Instant::now()) {
                worker.wake()?;
            }
            let Some(status) = worker.child.try_wait()? else {
                continue;
            };
            if worker.has_aborted(status) {
                self.losses.aborts += 1;
            } else if !worker.ending {
                bail!("a worker of {} ended with {status}", worker.service);
            }
            let service = worker.service;
            self.workers[place] = self.spawn(service)?;
        }
        Ok(())
    }

    /// Kills a worker without warning.
    pub(crate) fn kill_one(&mut self, random: &mut StdRng) -> anyhow::Result<()> {
        let worker = self.any(random);
        worker.ending = true;
        worker
            .child
            .start_kill()
            .context("a worker cannot be killed")?;
        self.losses.kills += 1;
        Ok(())
    }

    /// Lets a worker stand still for this long.
    pub(crate) fn stop_one(&mut self, pause: Duration, random: &mut StdRng) -> anyhow::Result<()> {
        let worker = self.any(random);
        if worker.stopped_until.is_none() && worker.signal(Signal::STOP)? {
            worker.stopped_until = Some(Instant::now() + pause);
            self.losses.stops += 1;
        }
        Ok(())
    }

    /// Asks a worker to stop in good order; another one takes its place.
    pub(crate) async fn restart_one(&mut self, random: &mut StdRng) -> anyhow::Result<()> {
        let worker = self.any(random);
        if !worker.ending {
            worker.ask_to_stop().await;
            self.losses.restarts += 1;
        }
        Ok(())
    }

    fn any(&mut self, random: &mut StdRng) -> &mut Worker {
        let chosen = random.random_range(0..self.workers.len());
        &mut self.workers[chosen]
    }

    /// Wakes everybody.
    pub(crate) fn calm_down(&mut self) -> anyhow::Result<()> {
        self.workers.iter_mut().try_for_each(Worker::wake)
    }

    /// Lets all workers stop in good order.
    pub(crate) async fn finish(mut self) -> anyhow::Result<Losses> {
        for worker in &mut self.workers {
            worker.ask_to_stop().await;
        }
        for worker in &mut self.workers {
            let ended = tokio::time::timeout(STOP_WITHIN, worker.child.wait()).await;
            let status =
                ended.with_context(|| format!("a worker of {} hangs", worker.service))??;
            ensure!(
                status.success(),
                "a worker of {} did not stop in good order: {status}",
                worker.service
            );
        }
        Ok(self.losses)
    }
}

impl Worker {
    /// Sends a signal, unless the process has ended.
    fn signal(&mut self, signal: Signal) -> anyhow::Result<bool> {
        if self.child.try_wait()?.is_some() {
            return Ok(false);
        }
        let number = self.child.id().and_then(|id| i32::try_from(id).ok());
        let Some(pid) = number.and_then(Pid::from_raw) else {
            return Ok(false);
        };
        kill_process(pid, signal).context("a worker cannot be signalled")?;
        Ok(true)
    }

    fn wake(&mut self) -> anyhow::Result<()> {
        if self.stopped_until.take().is_some() {
            self.signal(Signal::CONT)?;
        }
        Ok(())
    }

    async fn ask_to_stop(&mut self) {
        self.ending = true;
        if let Some(input) = &mut self.child.stdin {
            // Who does not hear it has died, which is noticed elsewhere.
            let _ = input.write_all(b"stop\n").await;
        }
    }

    fn has_aborted(&self, status: ExitStatus) -> bool {
        status.signal() == Some(Signal::ABORT.as_raw())
    }
}
