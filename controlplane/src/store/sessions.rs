//! Sessions and the idempotency keys of their opens.

use super::{SessionRow, Store, StoreError, on};
use crate::ids::{SessionId, TenantId};
use crate::time::Millis;

/// How long an idempotency key is remembered.
pub const IDEMPOTENCY_MS: Millis = 24 * 3600 * 1000;

macro_rules! columns {
    () => {
        "id, tenant, owner, state, credential_mode, domains, record, labels, created_at, started_at, deadline_at, idle_ms, \
         used_at, clone_name, clone_id, closed_at, close_reason"
    };
}

/// What an insert did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inserted {
    /// The session is new.
    New,
    /// The idempotency key was used for the same request: its session.
    Existing(Box<SessionRow>),
    /// The idempotency key was used for another request.
    Conflict,
}

/// Which sessions to list, newest first.
#[derive(Debug, Clone)]
pub struct SessionFilter {
    /// Of this tenant.
    pub tenant: TenantId,
    /// Of this caller only.
    pub owner: Option<String>,
    /// Without those that are closed.
    pub open_only: bool,
    /// At most so many.
    pub limit: u32,
    /// Those that come after this session in the list.
    pub before: Option<SessionId>,
}

impl Store {
    /// Insert a session, unless its idempotency key was used in the last 24 hours by the same tenant and owner.
    pub async fn insert_session(
        &self,
        row: &SessionRow,
        idempotency: Option<(&str, &[u8])>,
    ) -> Result<Inserted, StoreError> {
        on!(self, transaction tx => {
            sqlx::query(concat!(
                "INSERT INTO sessions (",
                columns!(),
                ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)",
            ))
            .bind(row.id.as_str())
            .bind(row.tenant.as_str())
            .bind(&row.owner)
            .bind(&row.state)
            .bind(&row.credential_mode)
            .bind(&row.domains)
            .bind(&row.record)
            .bind(&row.labels)
            .bind(row.created_at)
            .bind(row.started_at)
            .bind(row.deadline_at)
            .bind(row.idle_ms)
            .bind(row.used_at)
            .bind(&row.clone_name)
            .bind(&row.clone_id)
            .bind(row.closed_at)
            .bind(&row.close_reason)
            .execute(&mut ***tx)
            .await?;
            match idempotency {
                None => Inserted::New,
                Some((key, request_hash)) => {
                    sqlx::query(
                        "DELETE FROM idempotency \
                         WHERE tenant = $1 AND owner = $2 AND idempotency_key = $3 AND created_at <= $4",
                    )
                    .bind(row.tenant.as_str())
                    .bind(&row.owner)
                    .bind(key)
                    .bind(row.created_at - IDEMPOTENCY_MS)
                    .execute(&mut ***tx)
                    .await?;
                    // Of two requests with one key at the same time, the second waits here for the commit of the first.
                    let inserted = sqlx::query(
                        "INSERT INTO idempotency (tenant, owner, idempotency_key, request_hash, session, created_at) \
                         VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
                    )
                    .bind(row.tenant.as_str())
                    .bind(&row.owner)
                    .bind(key)
                    .bind(request_hash)
                    .bind(row.id.as_str())
                    .bind(row.created_at)
                    .execute(&mut ***tx)
                    .await?
                    .rows_affected();
                    if inserted == 1 {
                        Inserted::New
                    } else {
                        sqlx::query("DELETE FROM sessions WHERE id = $1")
                            .bind(row.id.as_str())
                            .execute(&mut ***tx)
                            .await?;
                        let (first_hash, session): (Vec<u8>, String) = sqlx::query_as(
                            "SELECT request_hash, session FROM idempotency \
                             WHERE tenant = $1 AND owner = $2 AND idempotency_key = $3",
                        )
                        .bind(row.tenant.as_str())
                        .bind(&row.owner)
                        .bind(key)
                        .fetch_one(&mut ***tx)
                        .await?;
                        if first_hash == request_hash {
                            let existing =
                                sqlx::query_as(concat!("SELECT ", columns!(), " FROM sessions WHERE id = $1"))
                                    .bind(session)
                                    .fetch_one(&mut ***tx)
                                    .await?;
                            Inserted::Existing(Box::new(existing))
                        } else {
                            Inserted::Conflict
                        }
                    }
                }
            }
        })
    }

    /// Forget the idempotency key of a session whose open was refused or failed, so that a retry opens another one.
    pub async fn forget_idempotency(&self, session: &SessionId) -> Result<(), StoreError> {
        on!(self, write db => {
            sqlx::query("DELETE FROM idempotency WHERE session = $1").bind(session.as_str()).execute(db).await?;
        })
    }

    /// A session.
    pub async fn session(&self, id: &SessionId) -> Result<Option<SessionRow>, StoreError> {
        on!(self, read db => sqlx::query_as(concat!("SELECT ", columns!(), " FROM sessions WHERE id = $1"))
            .bind(id.as_str())
            .fetch_optional(db)
            .await?)
    }

    /// An opening session has its clone now. False if it is not opening any more.
    pub async fn set_session_open(
        &self,
        id: &SessionId,
        clone_name: &str,
        clone_id: &str,
        started_at: Millis,
    ) -> Result<bool, StoreError> {
        on!(self, write db => sqlx::query(
            "UPDATE sessions SET state = 'open', clone_name = $2, clone_id = $3, started_at = $4, used_at = $4 \
             WHERE id = $1 AND state = 'opening'",
        )
        .bind(id.as_str())
        .bind(clone_name)
        .bind(clone_id)
        .bind(started_at)
        .execute(db)
        .await?
        .rows_affected() == 1)
    }

    /// The session's clone is being destroyed. False if it was so already, or the session is closed.
    pub async fn set_session_closing(&self, id: &SessionId) -> Result<bool, StoreError> {
        on!(self, write db => sqlx::query(
            "UPDATE sessions SET state = 'closing' WHERE id = $1 AND state IN ('opening', 'open')",
        )
        .bind(id.as_str())
        .execute(db)
        .await?
        .rows_affected() == 1)
    }

    /// The session has ended. False if it had ended before: the first reason stays.
    pub async fn set_session_closed(
        &self,
        id: &SessionId,
        at: Millis,
        reason: &str,
    ) -> Result<bool, StoreError> {
        on!(self, write db => sqlx::query(
            "UPDATE sessions SET state = 'closed', closed_at = $2, close_reason = $3 WHERE id = $1 AND state <> 'closed'",
        )
        .bind(id.as_str())
        .bind(at)
        .bind(reason)
        .execute(db)
        .await?
        .rows_affected() == 1)
    }

    /// When these sessions were last used. A time never goes back.
    pub async fn touch_sessions(&self, used: &[(SessionId, Millis)]) -> Result<(), StoreError> {
        if used.is_empty() {
            return Ok(());
        }
        // In one order, so that two processes cannot block each other.
        let mut used: Vec<_> = used.iter().collect();
        used.sort();
        on!(self, transaction tx => {
            for (id, at) in &used {
                sqlx::query("UPDATE sessions SET used_at = $2 WHERE id = $1 AND used_at < $2")
                    .bind(id.as_str())
                    .bind(at)
                    .execute(&mut ***tx)
                    .await?;
            }
        })
    }

    /// Every session that has not ended, oldest first.
    pub async fn unclosed_sessions(&self) -> Result<Vec<SessionRow>, StoreError> {
        on!(self, read db => sqlx::query_as(concat!(
            "SELECT ", columns!(), " FROM sessions WHERE state <> 'closed' ORDER BY created_at, id",
        ))
        .fetch_all(db)
        .await?)
    }

    /// Sessions of a tenant, newest first.
    pub async fn sessions(&self, filter: &SessionFilter) -> Result<Vec<SessionRow>, StoreError> {
        let before = filter.before.as_ref().map(SessionId::as_str);
        on!(self, read db => sqlx::query_as(concat!(
            "SELECT ", columns!(), " FROM sessions \
             WHERE tenant = $1 AND ($2 IS NULL OR owner = $2) AND ($3 = 0 OR state <> 'closed') \
             AND ($4 IS NULL OR (created_at, id) < \
                 (SELECT s.created_at, s.id FROM sessions s WHERE s.id = $4 AND s.tenant = $1)) \
             ORDER BY created_at DESC, id DESC LIMIT $5",
        ))
        .bind(filter.tenant.as_str())
        .bind(filter.owner.as_deref())
        .bind(i64::from(filter.open_only))
        .bind(before)
        .bind(i64::from(filter.limit))
        .fetch_all(db)
        .await?)
    }

    /// How many sessions have not ended, of one tenant or of all.
    pub async fn count_open(&self, tenant: Option<&TenantId>) -> Result<u32, StoreError> {
        let tenant = tenant.map(TenantId::as_str);
        let count: i64 = on!(self, read db => sqlx::query_scalar(
            "SELECT COUNT(*) FROM sessions WHERE state <> 'closed' AND ($1 IS NULL OR tenant = $1)",
        )
        .bind(tenant)
        .fetch_one(db)
        .await?)?;
        Ok(u32::try_from(count).unwrap_or(u32::MAX))
    }

    /// Remove sessions that ended before this time and have no recording, and idempotency keys older than 24 hours.
    /// The number of sessions removed. At most 1000 at once, so that the removal does not hold up others: call it again while it
    /// removes so many.
    pub async fn forget_sessions(&self, closed_before: Millis) -> Result<u64, StoreError> {
        let expired = crate::time::now() - IDEMPOTENCY_MS;
        on!(self, transaction tx => {
            sqlx::query("DELETE FROM idempotency WHERE created_at <= $1").bind(expired).execute(&mut ***tx).await?;
            sqlx::query(
                "DELETE FROM sessions WHERE id IN (\
                     SELECT s.id FROM sessions s WHERE s.state = 'closed' AND s.closed_at < $1 \
                     AND NOT EXISTS (SELECT 1 FROM frames f WHERE f.session = s.id) \
                     ORDER BY s.closed_at LIMIT 1000)",
            )
            .bind(closed_before)
            .execute(&mut ***tx)
            .await?
            .rows_affected()
        })
    }
}
