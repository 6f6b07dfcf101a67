//! The least that PostgreSQL must do for the same effect.

use anyhow::Result;
use sqlx::{Connection, PgPool};
use tokio::{task::JoinSet, time::Instant};
use uuid::Uuid;

use crate::measured::{Bench, TEXT, rate};

/// Tables that floors write to: the same as ours, without anything around them.
pub(crate) async fn prepare(pool: &PgPool) -> Result<()> {
    for statement in [
        "CREATE TABLE effects (id bigserial PRIMARY KEY, text text NOT NULL)",
        "CREATE TABLE floor_inbox (LIKE wh_inbox INCLUDING ALL)",
        "CREATE TABLE floor_dedup (LIKE wh_message_deduplication INCLUDING ALL)",
        "CREATE TABLE floor_commands (LIKE wh_command_results INCLUDING ALL)",
        "CREATE TABLE floor_outbox (LIKE wh_outbox INCLUDING ALL)",
    ] {
        sqlx::raw_sql(statement).execute(pool).await?;
    }
    Ok(())
}

impl Bench {
    /// The same rows by bare `INSERT … SELECT unnest` into the same tables.
    pub(crate) async fn floor_store(&self) -> Result<f64> {
        self.reset().await?;
        let mut connection = self.pool.acquire().await?;
        let began = Instant::now();
        for _ in 0..self.messages / 500 {
            let ids: Vec<_> = (0..500).map(|_| Uuid::now_v7()).collect();
            let mut tx = connection.begin().await?;
            sqlx::query(
                "INSERT INTO floor_dedup (message_id, fingerprint) SELECT id, 1 FROM unnest($1) id",
            )
            .bind(&ids)
            .execute(&mut *tx)
            .await?;
            sqlx::query("INSERT INTO floor_inbox (message_id, handler_name, message_type, event_data, metadata, lane, correlation_id) SELECT id, 'insert_unordered', 'bench.unordered', data::json, '{\"source\":\"x\"}', 'insert_unordered', id FROM unnest($1, $2) i(id, data)")
                .bind(&ids)
                .bind(vec![TEXT; 500])
                .execute(&mut *tx)
                .await?;
            tx.commit().await?;
        }
        Ok(rate(self.messages, began))
    }

    /// `BEGIN; INSERT; DELETE; COMMIT` on as many connections.
    pub(crate) async fn floor_transactions(&self) -> Result<f64> {
        self.reset().await?;
        let ids = self.fill_floor_inbox().await?;
        self.share(ids, async |connection, id| {
            let mut tx = connection.begin().await?;
            sqlx::query("INSERT INTO effects (text) VALUES ($1)")
                .bind(TEXT)
                .execute(&mut *tx)
                .await?;
            sqlx::query("DELETE FROM floor_inbox WHERE message_id = $1 AND handler_name = 'insert_unordered'")
                .bind(id)
                .execute(&mut *tx)
                .await?;
            tx.commit().await
        })
        .await
    }

    /// A transaction with an insert, and a bare insert of the same outbox row as ours.
    pub(crate) async fn floor_publish(&self) -> Result<f64> {
        self.reset().await?;
        let ids = (0..self.messages).map(|_| Uuid::now_v7()).collect();
        self.share(ids, async |connection, id| {
            let mut tx = connection.begin().await?;
            sqlx::query("INSERT INTO effects (text) VALUES ($1)")
                .bind(TEXT)
                .execute(&mut *tx)
                .await?;
            sqlx::query("INSERT INTO floor_outbox (message_id, destination, message_type, event_data, metadata, correlation_id) VALUES ($1, 'bench', 'bench.unordered', $2::json, '{\"source\":\"bench\"}', $1)")
                .bind(id)
                .bind(TEXT)
                .execute(&mut *tx)
                .await?;
            tx.commit().await
        })
        .await
    }

    /// Bulk `DELETE` of the same rows.
    pub(crate) async fn floor_delete(&self) -> Result<f64> {
        self.reset().await?;
        let ids = self.fill_floor_inbox().await?;
        let began = Instant::now();
        for batch in ids.chunks(500) {
            sqlx::query("DELETE FROM floor_inbox WHERE message_id = ANY($1) AND handler_name = 'insert_unordered'")
                .bind(batch)
                .execute(&self.pool)
                .await?;
        }
        Ok(rate(self.messages, began))
    }

    async fn fill_floor_inbox(&self) -> Result<Vec<Uuid>> {
        let ids: Vec<_> = (0..self.messages).map(|_| Uuid::now_v7()).collect();
        sqlx::query("INSERT INTO floor_inbox (message_id, handler_name, message_type, event_data, metadata, lane) SELECT id, 'insert_unordered', 'bench.unordered', $2::json, '{}', 'insert_unordered' FROM unnest($1) id")
            .bind(&ids)
            .bind(TEXT)
            .execute(&self.pool)
            .await?;
        Ok(ids)
    }

    /// Shares ids out to as many connections as the framework has.
    async fn share<F>(&self, ids: Vec<Uuid>, work: F) -> Result<f64>
    where
        F: AsyncFn(&mut sqlx::PgConnection, Uuid) -> Result<(), sqlx::Error> + Clone + 'static,
    {
        let count = ids.len();
        let shares: Vec<Vec<Uuid>> = (0..self.connections as usize)
            .map(|turn| {
                ids.iter()
                    .skip(turn)
                    .step_by(self.connections as usize)
                    .copied()
                    .collect()
            })
            .collect();
        let local = tokio::task::LocalSet::new();
        let began = Instant::now();
        let mut tasks = JoinSet::new();
        for share in shares {
            let (pool, work) = (self.pool.clone(), work.clone());
            tasks.spawn_local_on(
                async move {
                    let mut connection = pool.acquire().await?;
                    for id in share {
                        work(&mut connection, id).await?;
                    }
                    Ok::<_, sqlx::Error>(())
                },
                &local,
            );
        }
        local
            .run_until(async {
                while let Some(done) = tasks.join_next().await {
                    done??;
                }
                anyhow::Ok(())
            })
            .await?;
        Ok(rate(count, began))
    }
}
