//! API keys: issue, check, list, revoke.
//!
//! A token is `cpk_`, the 32 digits of the key's id, `_`, and 32 random bytes as base64url. The id is public and finds the row;
//! only SHA-256 of the random bytes is stored. 256 random bits need no slow hash.

use super::{Caller, Identity, Scope};
use crate::error::{ApiError, ErrorCode};
use crate::ids::{KeyId, TenantId};
use crate::store::{KeyRow, Store};
use crate::time::{Millis, now};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;

/// How long a key is believed without a look into the database. A revocation by another process works after this time.
const CACHE_TIME: Duration = Duration::from_millis(500);
/// The time of the last use is written at most so often.
const TOUCH_EVERY_MS: Millis = 60_000;
/// Keys in the cache. When it is full it is emptied.
const CACHE_SIZE: usize = 10_000;
/// The longest label in bytes.
const MAX_LABEL: usize = 200;

const PREFIX: &str = "cpk_";

/// What a new key is to be.
#[derive(Debug, Clone)]
pub struct NewKey {
    /// The tenant.
    pub tenant: TenantId,
    /// A name for people.
    pub label: String,
    /// What its holder may do.
    pub scopes: BTreeSet<Scope>,
    /// When it expires; None: never.
    pub expires_at: Option<Millis>,
    /// Who issues it: [`Caller::name`].
    pub issued_by: String,
}

/// The token of a key. It is shown once and stored nowhere.
pub struct Token(String);

impl Token {
    /// The text that the holder sends.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// The keys of every tenant. Clones share the cache.
#[derive(Debug, Clone)]
pub struct Keys {
    store: Store,
    cache_time: Duration,
    cache: Arc<Mutex<Cache>>,
}

#[derive(Debug, Default)]
struct Cache {
    rows: HashMap<KeyId, (Instant, KeyRow)>,
    /// Changes with each revocation: a row that was read before one is not kept after it.
    revocations: u64,
}

impl Keys {
    /// The keys in this store.
    pub fn new(store: Store) -> Self {
        Self::with_cache_time(store, CACHE_TIME)
    }

    /// The same, believing a key for another time without a look into the database.
    pub fn with_cache_time(store: Store, cache_time: Duration) -> Self {
        Self { store, cache_time, cache: Arc::default() }
    }

    /// Issue a key. The token cannot be had again.
    pub async fn issue(&self, new: NewKey) -> Result<(KeyRow, Token), ApiError> {
        let bad = |message: &str| Err(ApiError::new(ErrorCode::BadRequest, message));
        if new.scopes.is_empty() {
            return bad("the key has no scope: name at least one");
        }
        if new.label.len() > MAX_LABEL || new.label.chars().any(char::is_control) {
            return bad("the label of a key has at most 200 bytes and no control characters");
        }
        let issued_at = now();
        if new.expires_at.is_some_and(|at| at <= issued_at) {
            return bad("the key would have expired already");
        }
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|error| {
            ApiError::new(ErrorCode::Internal, format!("the system has no random numbers: {error}"))
        })?;
        let id = KeyId::random();
        let digits = id.as_str().trim_start_matches("key_");
        let token = Token(format!("{PREFIX}{digits}_{}", URL_SAFE_NO_PAD.encode(secret)));
        let row = KeyRow {
            id,
            tenant: new.tenant,
            label: new.label,
            secret_hash: Sha256::digest(secret).to_vec(),
            scopes: new.scopes.iter().map(|scope| scope.word()).collect::<Vec<_>>().join(","),
            issued_by: new.issued_by,
            issued_at,
            expires_at: new.expires_at,
            revoked_at: None,
            used_at: None,
        };
        self.store.insert_key(&row).await?;
        Ok((row, token))
    }

    /// Who presents this token. Err is `unauthorized` for a token that is malformed, unknown, wrong, expired or revoked, with one
    /// message for all of them, and `store_unavailable`.
    pub async fn check(&self, token: &str) -> Result<Caller, ApiError> {
        let refused = || ApiError::new(ErrorCode::Unauthorized, "the key is not valid");
        let (id, secret) = parse(token).ok_or_else(refused)?;
        let row = self.row(&id).await?.ok_or_else(refused)?;
        let matches: bool = Sha256::digest(secret).as_slice().ct_eq(&row.secret_hash).into();
        let at = now();
        if !matches || row.revoked_at.is_some() || row.expires_at.is_some_and(|expires| expires <= at) {
            return Err(refused());
        }
        self.touch(&row, at);
        let scopes = scopes(&row)?;
        Ok(Caller { identity: Identity::Key(row.id), tenant: row.tenant, scopes, all_tenants: false })
    }

    /// Until when a key is valid; None: for ever. Err is `unauthorized` if it was revoked or has expired.
    pub async fn standing(&self, id: &KeyId) -> Result<Option<Millis>, ApiError> {
        match self.row(id).await? {
            Some(row) if row.revoked_at.is_none() && row.expires_at.is_none_or(|at| at > now()) => {
                Ok(row.expires_at)
            }
            _ => Err(ApiError::new(ErrorCode::Unauthorized, "the key is not valid")),
        }
    }

    /// The keys of a tenant, also those that expired or were revoked, oldest first.
    pub async fn list(&self, tenant: &TenantId) -> Result<Vec<KeyRow>, ApiError> {
        Ok(self.store.keys(tenant).await?)
    }

    /// Revoke a key of the tenant. In this process it ends at once, in others of the same database within a second. False if the
    /// tenant has no such key or it was revoked before.
    pub async fn revoke(&self, id: &KeyId, tenant: &TenantId) -> Result<bool, ApiError> {
        let revoked = self.store.revoke_key(id, tenant, now()).await;
        // Also after an error: the revocation may have happened.
        let mut cache = self.lock();
        cache.revocations += 1;
        cache.rows.remove(id);
        Ok(revoked?)
    }

    async fn row(&self, id: &KeyId) -> Result<Option<KeyRow>, ApiError> {
        let revocations = {
            let cache = self.lock();
            if let Some((read, row)) = cache.rows.get(id)
                && read.elapsed() < self.cache_time
            {
                return Ok(Some(row.clone()));
            }
            cache.revocations
        };
        let began = Instant::now();
        let row = self.store.key(id).await?;
        let mut cache = self.lock();
        match &row {
            Some(row) if cache.revocations == revocations => {
                if cache.rows.len() >= CACHE_SIZE {
                    cache.rows.clear();
                }
                cache.rows.insert(id.clone(), (began, row.clone()));
            }
            _ => {}
        }
        Ok(row)
    }

    /// Write the time of the last use, without delaying the call. It is a convenience for people: a failure is not an error.
    fn touch(&self, row: &KeyRow, at: Millis) {
        if row.used_at.is_some_and(|used| at - used < TOUCH_EVERY_MS) {
            return;
        }
        if let Some((_, cached)) = self.lock().rows.get_mut(&row.id) {
            cached.used_at = Some(at);
        }
        let (store, id) = (self.store.clone(), row.id.clone());
        tokio::spawn(async move {
            if let Err(error) = store.touch_key(&id, at).await {
                tracing::debug!(key = %id, %error, "the time of a key's last use was not written");
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().expect("not poisoned")
    }
}

/// The scopes of a stored key.
pub fn scopes(row: &KeyRow) -> Result<BTreeSet<Scope>, ApiError> {
    row.scopes
        .split(',')
        .map(|word| {
            Scope::ALL.into_iter().find(|scope| scope.word() == word).ok_or_else(|| {
                ApiError::new(ErrorCode::Internal, format!("{} has the unknown scope {word:?}", row.id))
            })
        })
        .collect()
}

fn parse(token: &str) -> Option<(KeyId, [u8; 32])> {
    let (digits, secret) = token.strip_prefix(PREFIX)?.split_once('_')?;
    let id = KeyId::try_from(format!("key_{digits}")).ok()?;
    let secret = URL_SAFE_NO_PAD.decode(secret).ok()?.try_into().ok()?;
    Some((id, secret))
}
