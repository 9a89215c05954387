//! The rows of the audit log. Each has the hash of the row before it.

use super::{Store, StoreError, on};
use crate::ids::{SessionId, TenantId};
use crate::time::Millis;
use serde::Serialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

/// A row to append. Its number and hashes are given by the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewAudit {
    /// When it happened.
    pub at: Millis,
    /// What joins the two rows of a call.
    pub call: String,
    /// `begin` or `end`.
    pub event: &'static str,
    /// Who.
    pub actor: String,
    /// The tenant.
    pub tenant: String,
    /// The session.
    pub session: Option<SessionId>,
    /// The verb.
    pub verb: String,
    /// The redacted parameters as JSON; of `begin` rows.
    pub params: Option<String>,
    /// `ok` or an error code; of `end` rows.
    pub outcome: Option<String>,
}

impl NewAudit {
    /// The row that continues the chain.
    fn chained(&self, head: &AuditHead) -> Result<AuditRow, StoreError> {
        let mut row = AuditRow {
            seq: head.seq + 1,
            at: self.at,
            call: self.call.clone(),
            event: self.event.to_owned(),
            actor: self.actor.clone(),
            tenant: self.tenant.clone(),
            session: self.session.as_ref().map(ToString::to_string),
            verb: self.verb.clone(),
            params: self.params.clone(),
            outcome: self.outcome.clone(),
            previous: head.hash.to_vec(),
            hash: Vec::new(),
        };
        let hash = row.expected_hash();
        let hash = hash.map_err(|error| StoreError::Corrupt(format!("parameters are not JSON: {error}")))?;
        row.hash = hash.to_vec();
        Ok(row)
    }
}

fn hash_of(seq: i64, hash: &[u8]) -> Result<[u8; 32], StoreError> {
    hash.try_into().map_err(|_| StoreError::Corrupt(format!("audit row {seq} has no valid hash")))
}

/// A row of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct AuditRow {
    /// Its number. The first is 1; there are no gaps.
    pub seq: i64,
    /// When it happened.
    pub at: Millis,
    /// What joins the two rows of a call.
    pub call: String,
    /// `begin` or `end`.
    pub event: String,
    /// Who.
    pub actor: String,
    /// The tenant.
    pub tenant: String,
    /// The session.
    pub session: Option<String>,
    /// The verb.
    pub verb: String,
    /// The redacted parameters as JSON; of `begin` rows.
    pub params: Option<String>,
    /// `ok` or an error code; of `end` rows.
    pub outcome: Option<String>,
    /// The hash of the row before, 32 zeros for the first.
    pub previous: Vec<u8>,
    /// SHA-256 of `previous` and the canonical JSON of the other columns.
    pub hash: Vec<u8>,
}

/// The canonical JSON of a row: these members in this order, without spaces; what is absent is left out.
#[derive(Serialize)]
struct Canonical<'a> {
    seq: i64,
    at: Millis,
    call: &'a str,
    event: &'a str,
    actor: &'a str,
    tenant: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<&'a str>,
    verb: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'a str>,
}

impl AuditRow {
    /// The canonical JSON of the row without its hashes. Err if the parameters are not JSON: something else wrote the row.
    pub fn canonical(&self) -> Result<String, serde_json::Error> {
        let params: Option<&RawValue> = self.params.as_deref().map(serde_json::from_str).transpose()?;
        serde_json::to_string(&Canonical {
            seq: self.seq,
            at: self.at,
            call: &self.call,
            event: &self.event,
            actor: &self.actor,
            tenant: &self.tenant,
            session: self.session.as_deref(),
            verb: &self.verb,
            params,
            outcome: self.outcome.as_deref(),
        })
    }

    /// The hash that the row must have.
    pub fn expected_hash(&self) -> Result<[u8; 32], serde_json::Error> {
        let canonical = self.canonical()?;
        Ok(Sha256::new().chain_update(&self.previous).chain_update(canonical).finalize().into())
    }
}

/// The last row of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditHead {
    /// Its number, 0 if there is none.
    pub seq: i64,
    /// Its hash, zeros if there is none.
    pub hash: [u8; 32],
}

/// A signed head of the log.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct CheckpointRow {
    /// The number of the row.
    pub seq: i64,
    /// Its hash.
    pub hash: Vec<u8>,
    /// When it was signed.
    pub at: Millis,
    /// The Ed25519 key that signed.
    pub public_key: Vec<u8>,
    /// The signature.
    pub signature: Vec<u8>,
}

/// Which rows to read, in their order.
#[derive(Debug, Clone, Default)]
pub struct AuditFilter {
    /// Of this tenant only.
    pub tenant: Option<TenantId>,
    /// Of this session only.
    pub session: Option<SessionId>,
    /// Rows after this number.
    pub after_seq: i64,
    /// At most so many.
    pub limit: u32,
}

macro_rules! columns {
    () => {
        "seq, at, call, event, actor, tenant, session, verb, params, outcome, previous, hash"
    };
}

fn insert_text(rows: usize) -> String {
    const COLUMNS: usize = 12;
    let row = |row: usize| {
        let values: Vec<String> =
            (1..=COLUMNS).map(|column| format!("${}", row * COLUMNS + column)).collect();
        format!("({})", values.join(", "))
    };
    let rows: Vec<String> = (0..rows).map(row).collect();
    format!(concat!("INSERT INTO audit (", columns!(), ") VALUES {}"), rows.join(", "))
}

/// The lock of the writers: "ctlaudit" in ASCII.
const LOCK: i64 = 0x6374_6c61_7564_6974;

fn head(row: Option<(i64, Vec<u8>)>) -> Result<AuditHead, StoreError> {
    let Some((seq, hash)) = row else { return Ok(AuditHead { seq: 0, hash: [0; 32] }) };
    let hash =
        hash.try_into().map_err(|_| StoreError::Corrupt(format!("audit row {seq} has no valid hash")))?;
    Ok(AuditHead { seq, hash })
}

impl Store {
    /// Append rows with one transaction, and return the new head. Several processes may do so: each continues the chain of the
    /// others.
    ///
    /// `seen` is a head that this process knows. If the log ends before it, or has another row there, something has removed or
    /// replaced rows, and nothing is appended.
    pub async fn append_audit(&self, rows: &[NewAudit], seen: &AuditHead) -> Result<AuditHead, StoreError> {
        let locked = self.engine_name() == "postgres";
        on!(self, transaction tx => {
            if locked {
                sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(LOCK).execute(&mut ***tx).await?;
            }
            let last = sqlx::query_as("SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1")
                .fetch_optional(&mut ***tx)
                .await?;
            let mut head = head(last)?;
            if head.seq < seen.seq || (head.seq == seen.seq && head.hash != seen.hash) {
                return Err(StoreError::Corrupt(format!(
                    "the audit log ends with row {}, but row {} was committed before: rows were removed or replaced",
                    head.seq, seen.seq
                )));
            }
            let mut chained = Vec::with_capacity(rows.len());
            for row in rows {
                let row = row.chained(&head)?;
                head = AuditHead { seq: row.seq, hash: hash_of(row.seq, &row.hash)? };
                chained.push(row);
            }
            let mut rest = chained.as_slice();
            while !rest.is_empty() {
                // One statement for many rows. There are few sizes, so that the prepared statements are used again.
                let size = [64, 16, 4, 1].into_iter().find(|size| *size <= rest.len()).unwrap_or(1);
                let (now, later) = rest.split_at(size);
                rest = later;
                let mut insert = sqlx::query(sqlx::AssertSqlSafe(insert_text(size)));
                for row in now {
                    insert = insert
                        .bind(row.seq)
                        .bind(row.at)
                        .bind(&row.call)
                        .bind(&row.event)
                        .bind(&row.actor)
                        .bind(&row.tenant)
                        .bind(&row.session)
                        .bind(&row.verb)
                        .bind(&row.params)
                        .bind(&row.outcome)
                        .bind(&row.previous)
                        .bind(&row.hash);
                }
                insert.execute(&mut ***tx).await?;
            }
            head
        })
    }

    /// Rows of the audit log, in their order.
    pub async fn audit_rows(&self, filter: &AuditFilter) -> Result<Vec<AuditRow>, StoreError> {
        let tenant = filter.tenant.as_ref().map(TenantId::as_str);
        let session = filter.session.as_ref().map(SessionId::as_str);
        on!(self, read db => sqlx::query_as(concat!(
            "SELECT ", columns!(), " FROM audit \
             WHERE seq > $1 AND ($2 IS NULL OR tenant = $2) AND ($3 IS NULL OR session = $3) ORDER BY seq LIMIT $4",
        ))
        .bind(filter.after_seq)
        .bind(tenant)
        .bind(session)
        .bind(i64::from(filter.limit))
        .fetch_all(db)
        .await?)
    }

    /// Number, call and event of rows after this number, at most 1000. It waits for every transaction that appends, also one whose
    /// answer was lost: afterwards, what it does not return was not committed.
    pub async fn audit_calls_after(&self, seq: i64) -> Result<Vec<(i64, String, String)>, StoreError> {
        let locked = self.engine_name() == "postgres";
        on!(self, transaction tx => {
            if locked {
                sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(LOCK).execute(&mut ***tx).await?;
            }
            sqlx::query_as("SELECT seq, call, event FROM audit WHERE seq > $1 ORDER BY seq LIMIT 1000")
                .bind(seq)
                .fetch_all(&mut ***tx)
                .await?
        })
    }

    /// The last row of the audit log.
    pub async fn audit_head(&self) -> Result<AuditHead, StoreError> {
        let last = on!(self, read db => sqlx::query_as("SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1")
            .fetch_optional(db)
            .await?)?;
        head(last)
    }

    /// Keep a signed head. Of each key the newest 10 000 are kept.
    pub async fn insert_checkpoint(&self, row: &CheckpointRow) -> Result<(), StoreError> {
        on!(self, transaction tx => {
            sqlx::query(
                "INSERT INTO audit_checkpoints (seq, hash, at, public_key, signature) VALUES ($1, $2, $3, $4, $5) \
                 ON CONFLICT DO NOTHING",
            )
            .bind(row.seq)
            .bind(&row.hash)
            .bind(row.at)
            .bind(&row.public_key)
            .bind(&row.signature)
            .execute(&mut ***tx)
            .await?;
            sqlx::query(
                "DELETE FROM audit_checkpoints WHERE public_key = $1 AND seq <= \
                 (SELECT seq FROM audit_checkpoints WHERE public_key = $1 ORDER BY seq DESC LIMIT 1 OFFSET 10000)",
            )
            .bind(&row.public_key)
            .execute(&mut ***tx)
            .await?;
        })
    }

    /// Every signed head, in the order of rows.
    pub async fn checkpoints(&self) -> Result<Vec<CheckpointRow>, StoreError> {
        on!(self, read db => sqlx::query_as(
            "SELECT seq, hash, at, public_key, signature FROM audit_checkpoints ORDER BY seq, public_key",
        )
        .fetch_all(db)
        .await?)
    }
}
