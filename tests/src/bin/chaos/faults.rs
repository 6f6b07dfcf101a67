//! What is done to the workers, to PostgreSQL and to the connections, and when.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Context;
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};
use tokio::task::JoinHandle;
use whizbang_postgres::embedded::Server;
use whizbang_tests::Proxy;

use super::{fleet::Fleet, worker::LEASE};

/// Share of commits that break their connection, before or after PostgreSQL has heard of them.
pub(crate) const LOST_COMMITS: f64 = 0.02;

/// After so long a frozen connection is cut.
const THAW: Duration = Duration::from_secs(4);

#[derive(Debug, Clone, Copy)]
enum Fault {
    KillWorker,
    StopWorker,
    RestartWorker,
    KillServer,
    Cut,
    Freeze,
}

/// Each kind happens in every round of this deck, in another order each time.
const DECK: [Fault; 9] = [
    Fault::KillWorker,
    Fault::KillWorker,
    Fault::KillWorker,
    Fault::StopWorker,
    Fault::StopWorker,
    Fault::RestartWorker,
    Fault::KillServer,
    Fault::Cut,
    Fault::Freeze,
];

/// Deals the faults.
pub(crate) struct Faults {
    pub(crate) random: StdRng,
    server: Arc<Mutex<Server>>,
    recovery: Option<JoinHandle<anyhow::Result<()>>>,
    deck: Vec<Fault>,
    next: Instant,
    thaw: Option<Instant>,
    pub(crate) crashes: u64,
    pub(crate) cuts: u64,
    pub(crate) freezes: u64,
}

impl Faults {
    pub(crate) fn new(seed: u64, server: Server) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            server: Arc::new(Mutex::new(server)),
            recovery: None,
            deck: Vec::new(),
            next: Instant::now() + Duration::from_secs(2),
            thaw: None,
            crashes: 0,
            cuts: 0,
            freezes: 0,
        }
    }

    /// Does what is due.
    pub(crate) async fn tick(&mut self, fleet: &mut Fleet, proxy: &Proxy) -> anyhow::Result<()> {
        if self.thaw.is_some_and(|due| due <= Instant::now()) {
            self.thaw = None;
            proxy.cut();
        }
        if self.recovery.as_ref().is_some_and(JoinHandle::is_finished) {
            self.recover().await?;
        }
        if self.next > Instant::now() {
            return Ok(());
        }
        self.next = Instant::now() + Duration::from_millis(self.random.random_range(500..4_000));
        if self.deck.is_empty() {
            self.deck = DECK.to_vec();
            self.deck.shuffle(&mut self.random);
        }
        match self.deck.pop() {
            Some(fault) => self.strike(fault, fleet, proxy).await,
            None => Ok(()),
        }
    }

    async fn strike(
        &mut self,
        fault: Fault,
        fleet: &mut Fleet,
        proxy: &Proxy,
    ) -> anyhow::Result<()> {
        match fault {
            Fault::KillWorker => fleet.kill_one(&mut self.random)?,
            Fault::StopWorker => {
                let pause = LEASE.mul_f64(self.random.random_range(1.2..3.0));
                fleet.stop_one(pause, &mut self.random)?;
            }
            Fault::RestartWorker => fleet.restart_one(&mut self.random).await?,
            Fault::KillServer => self.crash(),
            Fault::Cut => {
                proxy.cut();
                self.cuts += 1;
            }
            Fault::Freeze => {
                proxy.freeze();
                self.freezes += 1;
                self.thaw = Some(Instant::now() + THAW);
            }
        }
        Ok(())
    }

    /// Kills PostgreSQL and starts it again after a moment, while everything else goes on.
    fn crash(&mut self) {
        if self.recovery.is_some() {
            return;
        }
        self.crashes += 1;
        let server = Arc::clone(&self.server);
        let pause = Duration::from_millis(self.random.random_range(0..1_500));
        self.recovery = Some(tokio::task::spawn_blocking(move || {
            let mut server = server.lock().unwrap_or_else(PoisonError::into_inner);
            server.kill().context("PostgreSQL cannot be killed")?;
            std::thread::sleep(pause);
            server.restart().context("PostgreSQL does not start again")
        }));
    }

    async fn recover(&mut self) -> anyhow::Result<()> {
        match self.recovery.take() {
            Some(recovery) => recovery.await.context("the recovery was given up")?,
            None => Ok(()),
        }
    }

    /// Nothing goes wrong any more.
    pub(crate) async fn calm_down(
        &mut self,
        fleet: &mut Fleet,
        proxy: &Proxy,
    ) -> anyhow::Result<()> {
        self.recover().await?;
        proxy.keep_commits();
        if self.thaw.take().is_some() {
            proxy.cut();
        }
        fleet.calm_down()
    }
}
