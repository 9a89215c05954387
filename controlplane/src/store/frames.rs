//! Recordings: one row for each picture. The pictures are files.

use super::{FrameRow, RecordingRow, Store, StoreError, on};
use crate::ids::{SessionId, TenantId};
use crate::time::Millis;

macro_rules! columns {
    () => {
        "session, tenant, number, captured_at, bytes, format, width, height, verb"
    };
}

macro_rules! recordings {
    () => {
        "SELECT f.session, f.tenant, s.owner, s.record, s.created_at, s.closed_at, COUNT(*) AS frames, \
         CAST(SUM(f.bytes) AS BIGINT) AS bytes, MIN(f.captured_at) AS first_at, MAX(f.captured_at) AS last_at \
         FROM frames f JOIN sessions s ON s.id = f.session "
    };
}

macro_rules! recordings_end {
    () => {
        " GROUP BY f.session, f.tenant, s.owner, s.record, s.created_at, s.closed_at "
    };
}

impl Store {
    /// Insert a frame. A number of the session can be used once.
    pub async fn insert_frame(&self, row: &FrameRow) -> Result<(), StoreError> {
        on!(self, write db => {
            sqlx::query(concat!(
                "INSERT INTO frames (",
                columns!(),
                ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            ))
            .bind(row.session.as_str())
            .bind(row.tenant.as_str())
            .bind(row.number)
            .bind(row.captured_at)
            .bind(row.bytes)
            .bind(&row.format)
            .bind(row.width)
            .bind(row.height)
            .bind(&row.verb)
            .execute(db)
            .await?;
        })
    }

    /// The frames of a session, in their order.
    pub async fn frames(&self, session: &SessionId) -> Result<Vec<FrameRow>, StoreError> {
        on!(self, read db => sqlx::query_as(concat!(
            "SELECT ", columns!(), " FROM frames WHERE session = $1 ORDER BY number",
        ))
        .bind(session.as_str())
        .fetch_all(db)
        .await?)
    }

    /// Forget one frame. False if there is none of this number.
    pub async fn delete_frame(&self, session: &SessionId, number: i64) -> Result<bool, StoreError> {
        on!(self, write db => sqlx::query("DELETE FROM frames WHERE session = $1 AND number = $2")
            .bind(session.as_str())
            .bind(number)
            .execute(db)
            .await?
            .rows_affected() == 1)
    }

    /// Forget every frame of a session. How many there were.
    pub async fn delete_frames(&self, session: &SessionId) -> Result<u64, StoreError> {
        on!(self, write db => sqlx::query("DELETE FROM frames WHERE session = $1")
            .bind(session.as_str())
            .execute(db)
            .await?
            .rows_affected())
    }

    /// The recordings of a tenant, newest session first: those that come after the session `before` in the list, of one owner or
    /// of all.
    pub async fn recordings(
        &self,
        tenant: &TenantId,
        owner: Option<&str>,
        before: Option<&SessionId>,
        limit: u32,
    ) -> Result<Vec<RecordingRow>, StoreError> {
        on!(self, read db => sqlx::query_as(concat!(
            recordings!(),
            "WHERE f.tenant = $1 AND ($2 IS NULL OR s.owner = $2) \
             AND ($3 IS NULL OR (s.created_at, s.id) < \
                 (SELECT b.created_at, b.id FROM sessions b WHERE b.id = $3 AND b.tenant = $1))",
            recordings_end!(),
            "ORDER BY s.created_at DESC, f.session DESC LIMIT $4",
        ))
        .bind(tenant.as_str())
        .bind(owner)
        .bind(before.map(SessionId::as_str))
        .bind(i64::from(limit))
        .fetch_all(db)
        .await?)
    }

    /// The recording of a session, if it has frames.
    pub async fn recording(&self, session: &SessionId) -> Result<Option<RecordingRow>, StoreError> {
        on!(self, read db => sqlx::query_as(concat!(
            recordings!(), "WHERE f.session = $1", recordings_end!(),
        ))
        .bind(session.as_str())
        .fetch_optional(db)
        .await?)
    }

    /// Recordings of sessions that were closed before this time, the oldest first, at most 1000.
    pub async fn expired_recordings(&self, closed_before: Millis) -> Result<Vec<RecordingRow>, StoreError> {
        on!(self, read db => sqlx::query_as(concat!(
            recordings!(),
            "WHERE s.closed_at < $1",
            recordings_end!(),
            "ORDER BY s.closed_at, f.session LIMIT 1000",
        ))
        .bind(closed_before)
        .fetch_all(db)
        .await?)
    }

    /// The size of all recordings.
    pub async fn recorded_bytes(&self) -> Result<u64, StoreError> {
        let bytes: i64 = on!(self, read db => sqlx::query_scalar(
            "SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM frames",
        )
        .fetch_one(db)
        .await?)?;
        Ok(u64::try_from(bytes).unwrap_or(0))
    }
}
