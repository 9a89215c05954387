//! API keys.

use super::{KeyRow, Store, StoreError, on};
use crate::ids::{KeyId, TenantId};
use crate::time::Millis;

macro_rules! columns {
    () => {
        "id, tenant, label, secret_hash, scopes, issued_by, issued_at, expires_at, revoked_at, used_at"
    };
}

impl Store {
    /// Insert a new key.
    pub async fn insert_key(&self, row: &KeyRow) -> Result<(), StoreError> {
        on!(self, write db => {
            sqlx::query(concat!(
                "INSERT INTO api_keys (",
                columns!(),
                ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
            ))
            .bind(row.id.as_str())
            .bind(row.tenant.as_str())
            .bind(&row.label)
            .bind(&row.secret_hash)
            .bind(&row.scopes)
            .bind(&row.issued_by)
            .bind(row.issued_at)
            .bind(row.expires_at)
            .bind(row.revoked_at)
            .bind(row.used_at)
            .execute(db)
            .await?;
        })
    }

    /// A key, also one that expired or was revoked.
    pub async fn key(&self, id: &KeyId) -> Result<Option<KeyRow>, StoreError> {
        on!(self, read db => sqlx::query_as(concat!("SELECT ", columns!(), " FROM api_keys WHERE id = $1"))
            .bind(id.as_str())
            .fetch_optional(db)
            .await?)
    }

    /// Every key of a tenant, oldest first.
    pub async fn keys(&self, tenant: &TenantId) -> Result<Vec<KeyRow>, StoreError> {
        on!(self, read db => sqlx::query_as(concat!(
            "SELECT ", columns!(), " FROM api_keys WHERE tenant = $1 ORDER BY issued_at, id",
        ))
        .bind(tenant.as_str())
        .fetch_all(db)
        .await?)
    }

    /// Revoke a key of the tenant. False if there is none, or it was revoked before.
    pub async fn revoke_key(&self, id: &KeyId, tenant: &TenantId, at: Millis) -> Result<bool, StoreError> {
        on!(self, write db => sqlx::query(
            "UPDATE api_keys SET revoked_at = $3 WHERE id = $1 AND tenant = $2 AND revoked_at IS NULL",
        )
        .bind(id.as_str())
        .bind(tenant.as_str())
        .bind(at)
        .execute(db)
        .await?
        .rows_affected() == 1)
    }

    /// When a key was last used. The time never goes back.
    pub async fn touch_key(&self, id: &KeyId, at: Millis) -> Result<(), StoreError> {
        on!(self, write db => {
            sqlx::query("UPDATE api_keys SET used_at = $2 WHERE id = $1 AND (used_at IS NULL OR used_at < $2)")
                .bind(id.as_str())
                .bind(at)
                .execute(db)
                .await?;
        })
    }
}
