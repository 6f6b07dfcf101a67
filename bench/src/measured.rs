//! The framework at the same work.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use anyhow::{Result, ensure};
use sqlx::PgPool;
use tokio::{sync::mpsc, task::JoinSet, time::Instant};
use whizbang::{Envelope, Message, store::Store};
use whizbang_postgres::{App, PgStore, Whizbang};

use crate::handlers::{self, Handled, Ordered, Plain, Reached, Timed, Unordered};

/// About 200 bytes of JSON.
pub(crate) const TEXT: &str = r#"{"number":1,"text":"abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz0123456"}"#;

/// Samples of the latency.
const SAMPLES: usize = 200;

/// A database and the size of the work.
pub(crate) struct Bench {
    pub(crate) pool: PgPool,
    pub(crate) messages: usize,
    pub(crate) connections: u32,
}

/// Messages per second.
pub(crate) fn rate(messages: usize, began: Instant) -> f64 {
    messages as f64 / began.elapsed().as_secs_f64()
}

impl Bench {
    /// Empties what a measurement leaves, so that each begins alike.
    pub(crate) async fn reset(&self) -> Result<()> {
        sqlx::raw_sql("TRUNCATE effects, floor_inbox, floor_dedup, floor_outbox, wh_inbox, wh_inbox_streams, wh_outbox, wh_message_deduplication, wh_command_results")
            .execute(&self.pool)
            .await?;
        sqlx::raw_sql("CHECKPOINT").execute(&self.pool).await?;
        Ok(())
    }

    pub(crate) async fn service(&self, handled: &Handled, reached: &Reached) -> Result<App> {
        let app = Whizbang::builder(self.pool.clone())
            .service("bench")
            .without_discovery()
            .register::<handlers::insert_unordered>()
            .register::<handlers::insert_ordered>()
            .register::<handlers::count>()
            .register::<handlers::reach>()
            .register::<handlers::do_once>()
            .state(Arc::clone(handled))
            .state(reached.clone())
            .concurrency(self.connections as usize)
            .start()
            .await?;
        Ok(app)
    }

    pub(crate) async fn quiet_service(
        &self,
    ) -> Result<(App, Handled, mpsc::UnboundedReceiver<Instant>)> {
        let handled = Handled::default();
        let (reached, arrivals) = mpsc::unbounded_channel();
        let app = self.service(&handled, &reached).await?;
        Ok((app, handled, arrivals))
    }

    /// Writes the subscriptions by a short life of the service.
    pub(crate) async fn subscribe(&self) -> Result<()> {
        let (app, _, _) = self.quiet_service().await?;
        app.shutdown().await?;
        Ok(())
    }

    fn unordered(&self, number: i64) -> Unordered {
        Unordered {
            number,
            text: TEXT.to_owned(),
        }
    }

    pub(crate) async fn fill<M: Message>(&self, message: impl Fn(usize) -> M) -> Result<()> {
        let store = PgStore::new(self.pool.clone());
        let numbers: Vec<_> = (0..self.messages).collect();
        for batch in numbers.chunks(500) {
            let envelopes = batch
                .iter()
                .map(|number| Envelope::new(&message(*number)))
                .collect::<Result<Vec<_>, _>>()?;
            store.store_inbox(&envelopes, None).await?;
        }
        Ok(())
    }

    /// Stores batches of 500 new messages.
    pub(crate) async fn store(&self) -> Result<f64> {
        self.subscribe().await?;
        self.reset().await?;
        let store = PgStore::new(self.pool.clone());
        let mut batches = Vec::new();
        for batch in 0..self.messages / 500 {
            let envelopes = (0..500)
                .map(|number| Envelope::new(&self.unordered((batch * 500 + number) as i64)))
                .collect::<Result<Vec<_>, _>>()?;
            batches.push(envelopes);
        }
        let began = Instant::now();
        for batch in &batches {
            let report = store.store_inbox(batch, None).await?;
            ensure!(report.stored == 500, "everything is new");
        }
        Ok(rate(self.messages, began))
    }

    /// Handles a backlog, one insert in each message's transaction.
    pub(crate) async fn handle_transactions(&self, streams: bool) -> Result<f64> {
        self.subscribe().await?;
        self.reset().await?;
        if streams {
            self.fill(|number| Ordered {
                stream: (number / 10) as i64,
                text: TEXT.to_owned(),
            })
            .await?;
        } else {
            self.fill(|number| self.unordered(number as i64)).await?;
        }
        let began = Instant::now();
        let (app, _, _) = self.quiet_service().await?;
        self.wait(|| app.counts().completed as usize >= self.messages)
            .await?;
        let rate = rate(self.messages, began);
        app.shutdown().await?;
        Ok(rate)
    }

    /// Handles a backlog without transactions.
    pub(crate) async fn handle_plain(&self) -> Result<f64> {
        self.subscribe().await?;
        self.reset().await?;
        self.fill(|_| Plain {
            text: TEXT.to_owned(),
        })
        .await?;
        let began = Instant::now();
        let (app, handled, _arrivals) = self.quiet_service().await?;
        self.wait(|| handled.load(Ordering::Relaxed) >= self.messages)
            .await?;
        app.shutdown().await?;
        Ok(rate(self.messages, began))
    }

    async fn wait(&self, done: impl Fn() -> bool) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(300);
        while !done() {
            ensure!(Instant::now() < deadline, "did not finish in five minutes");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    }

    /// A transaction with an insert and a publish, by a dispatcher whose relay is kept out of it.
    pub(crate) async fn publish(&self) -> Result<f64> {
        self.reset().await?;
        let app = Whizbang::builder(self.pool.clone())
            .service("bench")
            .without_discovery()
            .publish_only()
            .start()
            .await?;
        let dispatcher = app.dispatcher();
        app.shutdown().await?;
        let mut tasks = JoinSet::new();
        let each = self.messages / self.connections as usize;
        let began = Instant::now();
        for _ in 0..self.connections {
            let (pool, dispatcher, event) =
                (self.pool.clone(), dispatcher.clone(), self.unordered(1));
            tasks.spawn(async move {
                let mut connection = pool.acquire().await?;
                for _ in 0..each {
                    let mut tx = sqlx::Connection::begin(&mut *connection).await?;
                    sqlx::query("INSERT INTO effects (text) VALUES ($1)")
                        .bind(TEXT)
                        .execute(&mut *tx)
                        .await?;
                    dispatcher.publish(&mut tx, &event).await?;
                    tx.commit().await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        Ok(rate(each * self.connections as usize, began))
    }

    /// From the commit of `dispatcher.transaction` to the start of the handler, on an idle
    /// system: the median and the 99th percentile.
    pub(crate) async fn latency(&self) -> Result<(Duration, Duration)> {
        self.reset().await?;
        let (app, _, mut arrivals) = self.quiet_service().await?;
        let dispatcher = app.dispatcher();
        let mut samples = Vec::with_capacity(SAMPLES);
        for _ in 0..SAMPLES {
            dispatcher
                .transaction(async |tx| {
                    dispatcher.publish(tx, &Timed {}).await?;
                    anyhow::Ok(())
                })
                .await?;
            let committed = Instant::now();
            let reached = arrivals.recv().await;
            samples.extend(reached.map(|at| at.saturating_duration_since(committed)));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        app.shutdown().await?;
        samples.sort();
        let at = |share: f64| {
            samples
                .get((samples.len() as f64 * share) as usize)
                .copied()
        };
        Ok((at(0.5).unwrap_or_default(), at(0.99).unwrap_or_default()))
    }
}
