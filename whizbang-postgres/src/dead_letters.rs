//! What ended for good, and the ways back.

use sqlx::Row;
use whizbang::store::{DeadLetter, Requeued, StoreResult};

use crate::{error::store_error, rows, store::PgStore};

impl PgStore {
    pub(crate) async fn list_dead_letters(
        &self,
        after: i64,
        limit: usize,
    ) -> StoreResult<Vec<DeadLetter>> {
        const DOING: &str = "list dead letters";
        let query = self
            .query(&self.calls().dead_letters)
            .bind(after)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let rows = self.rows(DOING, query).await?;
        rows.iter()
            .map(rows::dead_letter)
            .collect::<Result<_, _>>()
            .map_err(store_error(DOING))
    }

    pub(crate) async fn requeue_dead_letters(&self, ids: &[i64]) -> StoreResult<Vec<Requeued>> {
        const DOING: &str = "requeue dead letters";
        let query = self.query(&self.calls().requeue).bind(ids);
        let rows = self.rows(DOING, query).await?;
        rows.iter()
            .map(|row| {
                Ok(Requeued {
                    id: row.try_get("id")?,
                    outcome: row.try_get("outcome")?,
                })
            })
            .collect::<Result<_, sqlx::Error>>()
            .map_err(store_error(DOING))
    }

    pub(crate) async fn throw_dead_letters_away(&self, ids: &[i64]) -> StoreResult<u64> {
        let query = self.query(&self.calls().discard).bind(ids);
        let discarded: i64 = self.value("discard dead letters", query).await?;
        Ok(discarded.unsigned_abs())
    }
}
