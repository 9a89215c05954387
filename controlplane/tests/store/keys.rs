//! API keys.

use crate::both;
use crate::support::database::Database;
use controlplane::access::keys::{Keys, NewKey, Token};
use controlplane::access::{DEFAULT_SCOPES, Identity, Scope};
use controlplane::error::ErrorCode;
use controlplane::store::{KeyRow, Store};
use controlplane::time::now;
use std::time::{Duration, Instant};

fn new_key() -> NewKey {
    NewKey {
        tenant: "a".parse().expect("a tenant"),
        label: "ci".into(),
        scopes: DEFAULT_SCOPES.into(),
        expires_at: None,
        issued_by: "uid:0".into(),
    }
}

async fn issue(store: &Store) -> (KeyRow, Token) {
    Keys::new(store.clone()).issue(new_key()).await.expect("a key")
}

async fn refused(keys: &Keys, token: &str) -> String {
    let error = keys.check(token).await.expect_err("refused");
    assert!(error.is(ErrorCode::Unauthorized), "{error}");
    error.message().to_owned()
}

both! {
    /// A token is shown once, and names its key, tenant and scopes. Whatever is wrong with another, the answer is the same.
    async fn tokens(database: &mut Database) {
        let store = database.open().await;
        let keys = Keys::new(store.clone());
        let (row, token) = issue(&store).await;
        let token = token.reveal();
        let (digits, secret) = token.strip_prefix("cpk_").and_then(|rest| rest.split_once('_')).expect("two parts");
        assert_eq!(format!("key_{digits}"), row.id.as_str());
        assert_eq!(secret.len(), 43);

        let caller = keys.check(token).await.expect("valid");
        assert_eq!(caller.identity, Identity::Key(row.id.clone()));
        assert_eq!(caller.tenant, row.tenant);
        assert_eq!(caller.scopes, DEFAULT_SCOPES.into());
        assert!(!caller.may(Scope::Admin));

        let dump = database.sql("SELECT * FROM api_keys");
        assert!(dump.contains("ci") && !dump.contains(secret), "the secret is not stored");

        let (_, other) = issue(&store).await;
        let other_secret = other.reveal().rsplit_once('_').map_or("", |(_, secret)| secret).to_owned();
        let unknown = format!("cpk_{}_{secret}", "0".repeat(32));
        let mut answers = std::collections::BTreeSet::new();
        for wrong in [
            "", "cpk_", "key", secret, row.id.as_str(), &unknown, &format!("cpk_{digits}_{other_secret}"),
            &format!("cpk_{digits}_"), &format!("{token}A"), &token[..token.len() - 1], &token.to_uppercase(),
            &format!("{token}="), &format!(" {token}"), &format!("cpk_{digits}_{}", "é".repeat(43)),
        ] {
            answers.insert(refused(&keys, wrong).await);
        }
        store.revoke_key(&row.id, &row.tenant, now()).await.expect("revoke");
        answers.insert(refused(&Keys::new(store.clone()), token).await);
        assert_eq!(answers.len(), 1, "{answers:?}");
    }

    /// A key ends at its time.
    async fn expiry(database: &mut Database) {
        let store = database.open().await;
        let keys = Keys::new(store.clone());
        let soon = NewKey { expires_at: Some(now() + 1500), ..new_key() };
        let (row, token) = keys.issue(soon).await.expect("a key");
        if now() < row.expires_at.expect("a time") - 500 {
            keys.check(token.reveal()).await.expect("valid");
        }
        while now() < row.expires_at.expect("a time") {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        refused(&keys, token.reveal()).await;
        for bad in [
            NewKey { expires_at: Some(now()), ..new_key() },
            NewKey { scopes: [].into(), ..new_key() },
            NewKey { label: "a\0b".into(), ..new_key() },
            NewKey { label: "x".repeat(201), ..new_key() },
        ] {
            let error = keys.issue(bad).await.expect_err("refused");
            assert!(error.is(ErrorCode::BadRequest), "{error}");
        }
    }

    /// A check within the time of the cache needs no database; a revocation works at once.
    async fn the_cache_and_revocation(database: &mut Database) {
        let store = database.open().await;
        let keys = Keys::with_cache_time(store.clone(), Duration::from_secs(3600));
        let (row, token) = keys.issue(new_key()).await.expect("a key");
        keys.check(token.reveal()).await.expect("valid");
        database.sql("UPDATE api_keys SET revoked_at = 1");
        keys.check(token.reveal()).await.expect("from the cache");
        database.sql("UPDATE api_keys SET revoked_at = NULL");

        let stranger = "b".parse().expect("a tenant");
        assert!(!keys.revoke(&row.id, &stranger).await.expect("no error"), "the key of another tenant");
        keys.check(token.reveal()).await.expect("valid");
        assert!(keys.revoke(&row.id, &row.tenant).await.expect("revoked"));
        refused(&keys, token.reveal()).await;
        assert!(!keys.revoke(&row.id, &row.tenant).await.expect("no error"), "a second time");
        assert_eq!(keys.list(&row.tenant).await.expect("list").len(), 1);
        assert!(keys.list(&stranger).await.expect("list").is_empty());
    }

    /// A revocation by another process works within a second.
    async fn revocation_by_another_process(database: &mut Database) {
        let (store, other) = (database.open().await, database.open().await);
        let keys = Keys::new(store.clone());
        let (row, token) = keys.issue(new_key()).await.expect("a key");
        keys.check(token.reveal()).await.expect("valid");
        Keys::new(other).revoke(&row.id, &row.tenant).await.expect("revoked");
        let revoked = Instant::now();
        loop {
            let asked = Instant::now();
            match keys.check(token.reveal()).await {
                Err(error) => break assert!(error.is(ErrorCode::Unauthorized), "{error}"),
                Ok(_) => assert!(asked - revoked < Duration::from_secs(1), "valid a second after the revocation"),
            }
        }
    }

    /// Checks that race with the revocation: none that begins after it succeeds.
    async fn revocation_races(database: &mut Database) {
        let store = database.open().await;
        let keys = Keys::with_cache_time(store.clone(), Duration::from_secs(3600));
        for _ in 0..20 {
            let (row, token) = keys.issue(new_key()).await.expect("a key");
            let checks = async {
                for _ in 0..10 {
                    let _ = keys.check(token.reveal()).await;
                    tokio::task::yield_now().await;
                }
            };
            let (_, revoked) = tokio::join!(checks, keys.revoke(&row.id, &row.tenant));
            assert!(revoked.expect("revoked"));
            refused(&keys, token.reveal()).await;
        }
    }

    /// The last use is written, once a minute, behind the call.
    async fn last_use(database: &mut Database) {
        let store = database.open().await;
        let keys = Keys::new(store.clone());
        let (row, token) = keys.issue(new_key()).await.expect("a key");
        let before = now();
        keys.check(token.reveal()).await.expect("valid");
        let began = Instant::now();
        let used = loop {
            if let Some(used) = store.key(&row.id).await.expect("read").and_then(|row| row.used_at) {
                break used;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "the use is not written");
        };
        assert!(used >= before);
    }
}
