//! The worker processes: started, fed, killed and replaced.

use std::{
    collections::{BTreeMap, HashMap},
    process::Stdio,
};

use anyhow::{Context, bail};
use rand::{RngExt, rngs::StdRng};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::mpsc,
};
use uuid::Uuid;

use crate::wire::{self, Report, Tally};

/// A line of the file on its way to the inbox.
type LineNumber = usize;

struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    /// Deliveries that the worker has not reported as stored.
    unsettled: HashMap<u64, LineNumber>,
    tally: Tally,
    killed: bool,
}

/// Something that a worker said, or its end.
pub(crate) struct News {
    worker: usize,
    what: What,
}

enum What {
    Report(Report),
    Ended,
}

/// All workers of a run.
pub(crate) struct Fleet {
    database_url: String,
    seed: u64,
    random: StdRng,
    workers: BTreeMap<usize, Worker>,
    next_worker: usize,
    next_delivery: u64,
    news: mpsc::UnboundedReceiver<News>,
    sender: mpsc::UnboundedSender<News>,
    /// Deliveries handed out, repeated ones included.
    pub(crate) delivered: u64,
    /// Deliveries that some worker has stored.
    pub(crate) stored: u64,
    /// Mails that went out for each order.
    pub(crate) mails: HashMap<Uuid, u32>,
    /// Workers killed so far.
    pub(crate) kills: usize,
    /// Counters of workers that have ended.
    ended: Tally,
}

impl Fleet {
    pub(crate) fn new(database_url: &str, seed: u64, random: StdRng) -> Self {
        let (sender, news) = mpsc::unbounded_channel();
        Self {
            database_url: database_url.to_owned(),
            seed,
            random,
            workers: BTreeMap::new(),
            next_worker: 0,
            next_delivery: 0,
            news,
            sender,
            delivered: 0,
            stored: 0,
            mails: HashMap::new(),
            kills: 0,
            ended: Tally::default(),
        }
    }

    /// Starts a worker: this very program, with the hidden subcommand.
    pub(crate) fn start_one(&mut self) -> anyhow::Result<()> {
        let program = std::env::current_exe().context("the program cannot find itself")?;
        let mut child = Command::new(program)
            .arg("worker")
            .arg(format!("--seed={}", self.seed))
            .env("DATABASE_URL", &self.database_url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("a worker could not be started")?;
        let number = self.next_worker;
        self.next_worker += 1;
        if let Some(output) = child.stdout.take() {
            tokio::spawn(listen(number, output, self.sender.clone()));
        }
        let worker = Worker {
            input: child.stdin.take(),
            child,
            unsettled: HashMap::new(),
            tally: Tally::default(),
            killed: false,
        };
        self.workers.insert(number, worker);
        Ok(())
    }

    /// Hands a line to one of the workers.
    pub(crate) async fn deliver(&mut self, line: LineNumber, text: &[u8]) -> anyhow::Result<()> {
        let delivery = self.next_delivery;
        self.next_delivery += 1;
        self.delivered += 1;
        let chosen = self.random.random_range(0..self.workers.len().max(1));
        let worker = self.workers.values_mut().nth(chosen);
        let worker = worker.context("there is no worker to deliver to")?;
        worker.unsettled.insert(delivery, line);
        if let Some(input) = &mut worker.input
            && input
                .write_all(&wire::delivery(delivery, text))
                .await
                .is_err()
        {
            // The worker is dead; the news of its end brings the delivery back.
            worker.input = None;
        }
        Ok(())
    }

    /// Deliveries that nobody has stored yet.
    pub(crate) fn unsettled(&self) -> usize {
        self.workers
            .values()
            .map(|worker| worker.unsettled.len())
            .sum()
    }

    /// Kills a worker without warning.
    pub(crate) fn kill_one(&mut self) -> anyhow::Result<()> {
        let alive = self.workers.values_mut().filter(|worker| !worker.killed);
        let mut alive: Vec<_> = alive.collect();
        if alive.is_empty() {
            return Ok(());
        }
        let chosen = self.random.random_range(0..alive.len());
        if let Some(worker) = alive.get_mut(chosen) {
            worker.killed = true;
            self.kills += 1;
            worker
                .child
                .start_kill()
                .context("a worker could not be killed")?;
        }
        Ok(())
    }

    /// Waits for news. Dropping the future loses nothing; what it returns must be taken in.
    pub(crate) async fn news(&mut self) -> Option<News> {
        self.news.recv().await
    }

    /// Takes news in. Returns lines that were on their way to a killed worker: they must be
    /// delivered again. Must not be dropped half-way, or a dead worker and its lines are forgotten.
    pub(crate) async fn take_in(&mut self, news: News) -> anyhow::Result<Vec<LineNumber>> {
        match news.what {
            What::Report(report) => {
                self.note(news.worker, report);
                Ok(Vec::new())
            }
            What::Ended => self.replace(news.worker).await,
        }
    }

    fn note(&mut self, number: usize, report: Report) {
        match report {
            Report::Mailed { order_id, .. } => *self.mails.entry(order_id).or_default() += 1,
            Report::Counts(tally) => {
                if let Some(worker) = self.workers.get_mut(&number) {
                    worker.tally = tally;
                }
            }
            Report::Stored { deliveries } => {
                if let Some(worker) = self.workers.get_mut(&number) {
                    for delivery in deliveries {
                        let expected = worker.unsettled.remove(&delivery);
                        self.stored += u64::from(expected.is_some());
                    }
                }
            }
        }
    }

    async fn replace(&mut self, number: usize) -> anyhow::Result<Vec<LineNumber>> {
        let Some(mut worker) = self.workers.remove(&number) else {
            return Ok(Vec::new());
        };
        let status = worker.child.wait().await?;
        if !worker.killed {
            bail!("worker {number} ended by itself with {status}; what it said is above");
        }
        self.ended.add(&worker.tally);
        self.start_one()?;
        Ok(worker.unsettled.into_values().collect())
    }

    /// Everything the workers have counted; what a killed one counted last is missing.
    pub(crate) fn tally(&self) -> Tally {
        let mut sum = self.ended;
        for worker in self.workers.values() {
            sum.add(&worker.tally);
        }
        sum
    }

    /// Lets all workers finish and end.
    pub(crate) async fn stop(&mut self) -> anyhow::Result<()> {
        for worker in self.workers.values_mut() {
            worker.input = None;
        }
        while !self.workers.is_empty() {
            let Some(news) = self.news().await else {
                break;
            };
            match news.what {
                What::Report(report) => self.note(news.worker, report),
                What::Ended => self.bury(news.worker).await?,
            }
        }
        Ok(())
    }

    async fn bury(&mut self, number: usize) -> anyhow::Result<()> {
        let Some(mut worker) = self.workers.remove(&number) else {
            return Ok(());
        };
        let status = worker.child.wait().await?;
        self.ended.add(&worker.tally);
        if !worker.killed && !status.success() {
            bail!("worker {number} did not stop in good order ({status}); what it said is above");
        }
        Ok(())
    }
}

/// Passes on what a worker says until its end.
async fn listen(worker: usize, output: ChildStdout, sender: mpsc::UnboundedSender<News>) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        // Only the last line of a killed worker can be unreadable.
        if let Ok(report) = serde_json::from_str(&line) {
            let what = What::Report(report);
            // Nobody listens any more only when the whole run is over.
            let _ = sender.send(News { worker, what });
        }
    }
    let what = What::Ended;
    let _ = sender.send(News { worker, what });
}
