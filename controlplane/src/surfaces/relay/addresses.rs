//! Addresses for clients that can only take a URL. They are kept in memory, by their hashes: a restart ends them.

use super::super::Surface;
use crate::access::{Caller, Identity};
use crate::error::{ApiError, ErrorCode};
use crate::ids::{KeyId, SessionId};
use crate::time::{Millis, millis, now, rfc3339};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::broadcast;
use tokio_util::task::TaskTracker;

/// How long an address is valid if the call does not say it, and at most.
const USUAL_SECONDS: u64 = 3600;
const LONGEST_SECONDS: u64 = 86_400;
/// Valid addresses of one session.
const MOST_OF_SESSION: usize = 64;
/// Revocations that a connection may miss before it asks the database.
const REMEMBERED: usize = 64;

const PREFIX: &str = "cpa_";

/// News of revoked keys.
pub(super) type Revocations = broadcast::Receiver<KeyId>;

/// An address to ask for.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AskForAddress {
    /// How long the address is valid (default 3600).
    #[schemars(range(min = 1, max = 86_400))]
    expires_in_seconds: Option<u64>,
}

/// An address. Whoever has it drives the session, until it expires, or its session or key ends.
#[derive(Serialize, JsonSchema)]
pub struct CdpAddress {
    /// For clients that take a WebSocket: `ws://…/cdp/…`.
    pub cdp_url: String,
    /// For clients that take an HTTP address: `http://…/cdp/…`.
    pub http_url: String,
    /// When it expires (RFC 3339).
    pub expires_at: String,
}

impl std::fmt::Debug for CdpAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CdpAddress").field("expires_at", &self.expires_at).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Ticket {
    caller: Caller,
    session: SessionId,
    expires_at: Millis,
}

/// CDP connections and their addresses.
#[derive(Debug)]
pub struct Relays {
    tickets: Mutex<HashMap<[u8; 32], Ticket>>,
    revoked: broadcast::Sender<KeyId>,
    connections: AtomicUsize,
    tasks: TaskTracker,
}

impl Default for Relays {
    fn default() -> Self {
        Self {
            tickets: Mutex::default(),
            revoked: broadcast::channel(REMEMBERED).0,
            connections: AtomicUsize::new(0),
            tasks: TaskTracker::new(),
        }
    }
}

impl Relays {
    /// Make an address of a session that the caller may use. The session is asked for, so a wrong one has the same error as
    /// everywhere.
    pub(crate) async fn address(
        &self,
        surface: &Surface,
        caller: &Caller,
        session: &str,
        wanted: &AskForAddress,
        host: Option<&str>,
    ) -> Result<CdpAddress, ApiError> {
        let seconds = wanted.expires_in_seconds.unwrap_or(USUAL_SECONDS);
        if !(1..=LONGEST_SECONDS).contains(&seconds) {
            let message = format!("expires_in_seconds is {seconds}; it is from 1 to {LONGEST_SECONDS}");
            return Err(ApiError::new(ErrorCode::BadRequest, message));
        }
        let key_ends = surface.access.standing(caller).await?;
        let base = base(surface, host)?;
        // Audited, and refused where a connection would be.
        drop(surface.app.cdp(caller, session).await?);
        let no_session = |_| ApiError::new(ErrorCode::NoSuchSession, "there is no such session");
        let session: SessionId = session.to_owned().try_into().map_err(no_session)?;
        let usual = now() + millis(Duration::from_secs(seconds));
        let expires_at = key_ends.map_or(usual, |ends| usual.min(ends));
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|error| {
            ApiError::new(ErrorCode::Internal, format!("the system has no random numbers: {error}"))
        })?;
        let ticket = Ticket { caller: caller.clone(), session, expires_at };
        self.insert(Sha256::digest(secret).into(), ticket)?;
        let path = format!("/cdp/{PREFIX}{}", URL_SAFE_NO_PAD.encode(secret));
        Ok(CdpAddress {
            cdp_url: format!("{}{path}", base.replacen("http", "ws", 1)),
            http_url: format!("{base}{path}"),
            expires_at: rfc3339(expires_at),
        })
    }

    fn insert(&self, hash: [u8; 32], ticket: Ticket) -> Result<(), ApiError> {
        let mut tickets = self.tickets.lock().expect("no panic while held");
        let at = now();
        tickets.retain(|_, ticket| ticket.expires_at > at);
        let of_session = tickets.values().filter(|other| other.session == ticket.session);
        let (count, first) = of_session
            .fold((0, Millis::MAX), |(count, first), other| (count + 1, first.min(other.expires_at)));
        if count >= MOST_OF_SESSION {
            let message = format!("the session has {MOST_OF_SESSION} valid CDP addresses");
            let wait = Duration::from_millis(u64::try_from(first - at).unwrap_or_default());
            return Err(ApiError::new(ErrorCode::CdpAddresses, message).retry_after(wait));
        }
        tickets.insert(hash, ticket);
        Ok(())
    }

    /// Who made an address, of which session, and when it expires. Whoever presents it acts as who made it; the caller's key must
    /// still be valid, and its rate of calls applies.
    pub(super) async fn redeem(
        &self,
        surface: &Surface,
        ticket: &str,
    ) -> Result<(Caller, SessionId, Millis), ApiError> {
        let refused =
            || ApiError::new(ErrorCode::NoSuchAddress, "there is no such CDP address, or it has ended");
        let secret = ticket.strip_prefix(PREFIX).and_then(|text| URL_SAFE_NO_PAD.decode(text).ok());
        // The address is found by its hash: the time of the search says nothing about other addresses.
        let hash: [u8; 32] = Sha256::digest(secret.ok_or_else(refused)?).into();
        let (caller, session, expires_at) = {
            let tickets = self.tickets.lock().expect("no panic while held");
            let found = tickets.get(&hash).filter(|ticket| ticket.expires_at > now()).ok_or_else(refused)?;
            (found.caller.clone(), found.session.clone(), found.expires_at)
        };
        match surface.access.standing(&caller).await {
            Err(error) if error.is(ErrorCode::Unauthorized) => return Err(refused()),
            standing => standing?,
        };
        surface.access.admit(&caller)?;
        Ok((caller, session, expires_at))
    }

    /// The addresses and connections of a key end.
    pub(crate) fn key_revoked(&self, key: &KeyId) {
        let of_key = |caller: &Caller| matches!(&caller.identity, Identity::Key(other) if other == key);
        self.tickets.lock().expect("no panic while held").retain(|_, ticket| !of_key(&ticket.caller));
        // An error means that there is no connection.
        let _ = self.revoked.send(key.clone());
    }

    pub(super) fn session_ended(&self, session: &str) {
        self.tickets
            .lock()
            .expect("no panic while held")
            .retain(|_, ticket| ticket.session.as_str() != session);
    }

    pub(super) fn revocations(&self) -> Revocations {
        self.revoked.subscribe()
    }

    /// Where connections run, so that a stop waits for them.
    pub(super) fn tasks(&self) -> TaskTracker {
        self.tasks.clone()
    }

    /// Wait until every connection has ended.
    pub(crate) async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Open connections.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Count a connection while the answer exists.
    pub(super) fn count(&self) -> Counted<'_> {
        self.connections.fetch_add(1, Ordering::Relaxed);
        Counted(&self.connections)
    }
}

/// One open connection.
pub(super) struct Counted<'a>(&'a AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The address of the service for URLs, without a slash at the end: as configured, or as the client reached it.
pub(super) fn base(surface: &Surface, host: Option<&str>) -> Result<String, ApiError> {
    let public = &surface.app.config.http.public_url;
    if !public.is_empty() {
        return Ok(public.clone());
    }
    let Some(listener) = surface.http_address else {
        let message = "the service has no HTTP listener (http.listen), so there is no address for a URL";
        return Err(ApiError::new(ErrorCode::BadRequest, message)
            .hint("Connect to GET /v1/sessions/{session_id}/cdp at the Unix socket, or ask the operator for a listener."));
    };
    // A client of the Unix socket does not say how others reach the listener.
    match host {
        Some(host) => Ok(format!("http://{host}")),
        None => Ok(format!("http://{listener}")),
    }
}
