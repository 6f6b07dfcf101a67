//! The parent process: feeds the workers, kills some if asked to, and draws up the ledger.

use std::{path::PathBuf, time::Duration, time::Instant};

use anyhow::{Context, bail, ensure};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use sqlx::PgPool;

use crate::{
    feed,
    fleet::{Fleet, News},
    ledger,
    progress::{Display, Progress},
    schema,
};

/// Workers killed while the file is fed; one more is killed after that.
const KILLS_WHILE_FED: usize = 5;

/// Without any progress for so long, something is stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a run is asked to do.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The file of orders; one with about three thousand lines comes with the example.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// Worker processes that share the database.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    instances: u16,

    /// Kills workers with SIGKILL on the way, and starts new ones.
    #[arg(long)]
    chaos: bool,

    /// Reads so many lines of the file only.
    #[arg(long, value_name = "N")]
    orders: Option<usize>,

    /// How often each line is delivered.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    deliveries: u16,

    /// Repeats the mishaps, the order of deliveries and the choice of victims of another run.
    #[arg(long)]
    seed: Option<u64>,
}

/// Returns whether the ledger is balanced.
pub(crate) async fn run(options: &Options, database_url: &str) -> anyhow::Result<bool> {
    let seed = options.seed.unwrap_or_else(|| rand::rng().random());
    let lines = read_lines(options)?;
    let pool = schema::connect(database_url, schema::PARENT_CONNECTIONS).await?;
    schema::create(&pool).await?;
    eprintln!(
        "{} lines, each delivered {} times to {} worker(s); --seed {seed}",
        lines.len(),
        options.deliveries,
        options.instances
    );
    let mut random = StdRng::seed_from_u64(seed);
    let plan = feed::plan(lines.len(), usize::from(options.deliveries), &mut random);
    let deliveries = plan.iter().map(Vec::len).sum();
    let mut shop = Shop {
        kills: kill_points(options, deliveries, &mut random),
        fleet: Fleet::new(database_url, seed, random),
        display: Display::new(),
        planned: deliveries,
        lines,
        pool,
    };
    for _ in 0..options.instances {
        shop.fleet.start_one()?;
    }
    let worked = shop.work(plan, options.chaos).await;
    shop.display.finish();
    worked?;
    let accounts = ledger::draw_up(&shop.lines, &shop.pool, &shop.fleet).await?;
    accounts.print()?;
    Ok(accounts.is_balanced())
}

fn read_lines(options: &Options) -> anyhow::Result<Vec<Vec<u8>>> {
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/data/orders.jsonl");
    let file = options.file.clone().unwrap_or_else(|| shipped.into());
    let bytes = std::fs::read(&file)
        .with_context(|| format!("the orders in {} cannot be read", file.display()))?;
    let lines = bytes.split(|byte| *byte == b'\n');
    Ok(lines
        .filter(|line| !line.is_empty())
        .take(options.orders.unwrap_or(usize::MAX))
        .map(<[u8]>::to_vec)
        .collect())
}

/// After how many stored deliveries a worker is killed, the latest first.
fn kill_points(options: &Options, deliveries: usize, random: &mut StdRng) -> Vec<u64> {
    if !options.chaos {
        return Vec::new();
    }
    let mut points: Vec<u64> = (0..KILLS_WHILE_FED)
        .map(|_| random.random_range(0..deliveries.max(1)) as u64)
        .collect();
    points.sort_unstable_by(|one, other| other.cmp(one));
    points
}

/// A run under way.
struct Shop {
    lines: Vec<Vec<u8>>,
    pool: PgPool,
    fleet: Fleet,
    display: Display,
    planned: usize,
    kills: Vec<u64>,
}

impl Shop {
    async fn work(&mut self, plan: Vec<Vec<usize>>, chaos: bool) -> anyhow::Result<()> {
        for window in plan {
            for line in window {
                self.deliver(line).await?;
            }
            self.settle().await?;
        }
        let stored = self.fleet.stored;
        ensure!(
            stored == self.planned as u64,
            "{stored} of {} deliveries were stored; the example lost the rest",
            self.planned
        );
        if chaos {
            self.fleet.kill_one()?;
        }
        self.drain().await?;
        self.fleet.stop().await
    }

    async fn deliver(&mut self, line: usize) -> anyhow::Result<()> {
        let text = self.lines.get(line).context("a line that is not there")?;
        self.fleet.deliver(line, text).await
    }

    /// Waits until every delivery is stored; those of killed workers are delivered again.
    async fn settle(&mut self) -> anyhow::Result<()> {
        let mut last = Instant::now();
        while self.fleet.unsettled() > 0 {
            let stored = self.fleet.stored;
            self.hear().await?;
            if self
                .kills
                .last()
                .is_some_and(|point| *point <= self.fleet.stored)
            {
                self.kills.pop();
                self.fleet.kill_one()?;
            }
            if self.display.is_due() {
                let progress = self.read_progress().await?;
                self.display.show(&progress, &self.fleet, self.planned);
            }
            if self.fleet.stored > stored {
                last = Instant::now();
            } else if last.elapsed() > PATIENCE {
                bail!("no delivery was stored for {PATIENCE:?}");
            }
        }
        Ok(())
    }

    /// Takes in what a worker has to say, if one says something within a moment. The timeout is
    /// around the waiting only: what has been heard must be dealt with to its end.
    async fn hear(&mut self) -> anyhow::Result<()> {
        let moment = Duration::from_millis(50);
        match tokio::time::timeout(moment, self.fleet.news()).await {
            Ok(Some(news)) => self.take_in(news).await,
            Ok(None) | Err(_) => Ok(()),
        }
    }

    async fn take_in(&mut self, news: News) -> anyhow::Result<()> {
        for line in self.fleet.take_in(news).await? {
            self.deliver(line).await?;
        }
        Ok(())
    }

    /// Waits until inbox and outbox are empty.
    async fn drain(&mut self) -> anyhow::Result<()> {
        let mut looks = tokio::time::interval(Duration::from_millis(100));
        let mut last = (Instant::now(), None);
        loop {
            tokio::select! {
                Some(news) = self.fleet.news() => {
                    self.take_in(news).await?;
                    continue;
                }
                _ = looks.tick() => {}
            }
            let progress = self.read_progress().await?;
            let done = progress.waiting == 0 && self.fleet.unsettled() == 0;
            if done || self.display.is_due() {
                self.display.show(&progress, &self.fleet, self.planned);
            }
            if done {
                return Ok(());
            }
            if last.1 != Some(progress) {
                last = (Instant::now(), Some(progress));
            } else if last.0.elapsed() > PATIENCE {
                let waiting = progress.waiting;
                bail!("{waiting} messages wait and nothing has happened for {PATIENCE:?}");
            }
        }
    }

    async fn read_progress(&self) -> anyhow::Result<Progress> {
        Progress::read(&self.pool)
            .await
            .context("the progress cannot be read")
    }
}
