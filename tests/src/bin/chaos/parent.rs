//! A run: asks for transfers, lets things go wrong, waits until nothing is left, and judges.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rand::RngExt;
use sqlx::{PgPool, postgres::PgPoolOptions};
use whizbang_postgres::embedded::Server;
use whizbang_tests::Proxy;

use super::{
    broker::Broker,
    faults::{Faults, LOST_COMMITS},
    figures::Figures,
    fleet::Fleet,
    hub::Hub,
    ledger,
    plan::Plan,
};

/// So much may be waiting before the clients hold back.
const BACKLOG: u64 = 400;
/// Transfers asked for at once.
const BURST: usize = 12;
/// Without any change for so long, something is stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a run is asked to do.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How long things go wrong.
    #[arg(long, default_value_t = 1.0, value_name = "N")]
    minutes: f64,

    /// Repeats the transfers, the mishaps and the kinds of faults of another run. What meets what
    /// depends on the machine, so a run is never repeated exactly.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

/// Returns whether everything is as it should be.
pub(crate) async fn run(options: &Options) -> anyhow::Result<bool> {
    ensure!(
        options.minutes > 0.0 && options.minutes.is_finite(),
        "--minutes must be more than 0"
    );
    let length = Duration::try_from_secs_f64(options.minutes * 60.0)?;
    let seed = options.seed.unwrap_or_else(|| rand::rng().random());
    eprintln!("chaos: {} minute(s), --seed {seed}", options.minutes);
    let mut run = Run::prepare(seed).await?;
    let worked = run.work(length).await;
    if let Err(error) = worked {
        eprintln!("chaos: {}", run.figures());
        return Err(error.context(format!("the run with --seed {seed} ended early")));
    }
    run.finish().await
}

struct Run {
    began: Instant,
    plan: Plan,
    broker: Broker,
    /// Held for as long as workers talk to the broker.
    _hub: Hub,
    proxy: Proxy,
    faults: Faults,
    fleet: Fleet,
    pool: PgPool,
}

impl Run {
    async fn prepare(seed: u64) -> anyhow::Result<Self> {
        let server = tokio::task::spawn_blocking(|| Server::builder().durable(true).start())
            .await?
            .context("a private server is needed, since it will be killed")?;
        server.create_database("chaos").await?;
        let options = server.connect_options("chaos");
        let pool = PgPoolOptions::new()
            .max_connections(2)
            .acquire_timeout(Duration::from_millis(500))
            .connect_lazy_with(options.clone());
        for schema in ["bank", "clearing"] {
            whizbang_postgres::migrate_schema(&pool, schema).await?;
        }
        sqlx::raw_sql(include_str!("sql/schema.sql"))
            .execute(&pool)
            .await?;
        let proxy = Proxy::start(&options).await;
        proxy.lose_commits(LOST_COMMITS, seed);
        let broker = Broker::new(seed);
        let hub = Hub::open(broker.clone()).await?;
        let database = proxy.url();
        Ok(Self {
            began: Instant::now(),
            plan: Plan::new(seed),
            fleet: Fleet::start(&hub.address, &database)?,
            broker,
            _hub: hub,
            proxy,
            faults: Faults::new(seed, server),
            pool,
        })
    }

    /// Faults and transfers, until the time is over.
    async fn work(&mut self, length: Duration) -> anyhow::Result<()> {
        let mut tick = tokio::time::interval(Duration::from_millis(50));
        let (mut feed, mut show) = (Instant::now(), Instant::now());
        let mut poison = Instant::now() + Duration::from_secs(3);
        while self.began.elapsed() < length {
            tick.tick().await;
            self.fleet.tend()?;
            self.faults.tick(&mut self.fleet, &self.proxy).await?;
            if feed.elapsed() > Duration::from_millis(200) {
                feed = Instant::now();
                self.feed().await?;
            }
            if poison <= Instant::now() {
                poison = Instant::now() + Duration::from_secs(40);
                self.broker.put(self.plan.bomb()?);
                self.broker.put(self.plan.unreadable()?);
            }
            if show.elapsed() > Duration::from_secs(5) {
                show = Instant::now();
                eprintln!("chaos: {}", self.figures());
            }
        }
        Ok(())
    }

    async fn feed(&mut self) -> anyhow::Result<()> {
        // While PostgreSQL is away, what is already at the broker must do.
        let Ok(waiting) = self.waiting().await else {
            return Ok(());
        };
        if waiting > BACKLOG {
            return Ok(());
        }
        for _ in 0..BURST {
            let errand = self.plan.transfer()?;
            if let Some(transfer) = errand.executed {
                self.broker.run_errand(transfer);
            }
            errand.sent.into_iter().for_each(|it| self.broker.put(it));
        }
        Ok(())
    }

    /// Messages that somebody still has to deal with, wherever they are.
    async fn waiting(&self) -> anyhow::Result<u64> {
        let stored: i64 = sqlx::query_scalar(include_str!("sql/backlog.sql"))
            .fetch_one(&self.pool)
            .await?;
        Ok(u64::try_from(stored)? + self.broker.backlog() as u64)
    }

    /// Calms everything down, waits for the end of all work, and judges.
    async fn finish(mut self) -> anyhow::Result<bool> {
        eprintln!("chaos: faults are over; waiting for the rest");
        self.faults.calm_down(&mut self.fleet, &self.proxy).await?;
        self.broker.calm_down();
        let stuck = self.drain().await?;
        let figures = self.figures();
        let stopped = self.fleet.finish().await;
        let judged = ledger::judge(&self.plan, &self.pool, &self.broker).await?;
        eprintln!("chaos: {figures}");
        figures.print(&judged)?;
        let mut problems = judged.problems.clone();
        problems.extend(stuck);
        problems.extend(stopped.err().map(|error| format!("{error:#}")));
        judged.print(&problems)
    }

    /// Waits until nothing is left to do; says what is stuck instead.
    async fn drain(&mut self) -> anyhow::Result<Option<String>> {
        let mut last = (Instant::now(), u64::MAX);
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            self.fleet.tend()?;
            let Ok(stored) = self.waiting().await else {
                ensure!(last.0.elapsed() < PATIENCE, "PostgreSQL does not come back");
                continue;
            };
            let waiting = stored.max(self.broker.load() as u64);
            if waiting == 0 {
                return Ok(None);
            }
            if waiting != last.1 {
                last = (Instant::now(), waiting);
            } else if last.0.elapsed() > PATIENCE {
                return Ok(Some(format!("{waiting} messages are stuck")));
            }
        }
    }

    fn figures(&self) -> Figures {
        Figures {
            seconds: self.began.elapsed().as_secs(),
            transfers: self.plan.transfers.len(),
            traffic: self.broker.traffic(),
            tally: self.broker.tally(),
            losses: self.fleet.losses,
            crashes: self.faults.crashes,
            cuts: self.faults.cuts,
            freezes: self.faults.freezes,
            commits: self.proxy.lost_commits(),
        }
    }
}
