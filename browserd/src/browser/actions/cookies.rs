//! Cookies of the whole browser, in the format of Playwright's storageState.
//!
//! `Storage.*` is used instead of `Network.*`: it handles all cookies in one call and keeps the partition of partitioned
//! ones. A domain without a leading dot is host-only both in CDP and in storageState, so domains are passed unchanged.

use crate::api::error::{ApiError, ErrorCode};
use crate::api::types::{Cookie, Cookies, CookiesSet, SameSite, SetCookies};
use crate::browser::Browser;
use crate::browser::tab::left;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::HashSet;
use tokio::time::Instant;

/// A cookie in CDP, for both directions.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CdpCookie {
    name: String,
    value: String,
    domain: String,
    path: String,
    #[serde(skip_serializing_if = "is_session")]
    expires: f64,
    http_only: bool,
    secure: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    same_site: Option<SameSite>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    partition_key: Option<PartitionKey>,
}

fn is_session(expires: &f64) -> bool {
    *expires < 0.0
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PartitionKey {
    top_level_site: String,
    has_cross_site_ancestor: bool,
}

impl From<&Cookie> for CdpCookie {
    fn from(cookie: &Cookie) -> Self {
        Self {
            name: cookie.name.clone(),
            value: cookie.value.clone(),
            domain: cookie.domain.clone(),
            path: cookie.path.clone(),
            expires: cookie.expires,
            http_only: cookie.http_only,
            secure: cookie.secure,
            same_site: cookie.same_site,
            partition_key: cookie.partition_key.as_ref().map(|site| PartitionKey {
                top_level_site: site.clone(),
                has_cross_site_ancestor: cookie.has_cross_site_ancestor.unwrap_or(true),
            }),
        }
    }
}

impl From<CdpCookie> for Cookie {
    fn from(cookie: CdpCookie) -> Self {
        let (partition_key, has_cross_site_ancestor) = match cookie.partition_key {
            Some(key) => (Some(key.top_level_site), Some(key.has_cross_site_ancestor)),
            None => (None, None),
        };
        Self {
            name: cookie.name,
            value: cookie.value,
            domain: cookie.domain,
            path: cookie.path,
            expires: if is_session(&cookie.expires) { -1.0 } else { cookie.expires },
            http_only: cookie.http_only,
            secure: cookie.secure,
            // Playwright writes Chromium's default explicitly.
            same_site: Some(cookie.same_site.unwrap_or(SameSite::Lax)),
            partition_key,
            has_cross_site_ancestor,
        }
    }
}

pub(crate) async fn get(browser: &Browser, until: Instant) -> Result<Cookies, ApiError> {
    #[derive(Deserialize)]
    struct StoredCookies {
        cookies: Vec<CdpCookie>,
    }
    let stored: StoredCookies = browser.cdp.call(None, "Storage.getCookies", json!({}), left(until)).await?;
    Ok(Cookies { cookies: stored.cookies.into_iter().map(Cookie::from).collect() })
}

/// Sets all cookies in one call, then reads them back to find those that the browser did not keep.
pub(crate) async fn set(
    browser: &Browser,
    request: &SetCookies,
    until: Instant,
) -> Result<CookiesSet, ApiError> {
    let cookies: Vec<CdpCookie> = request.cookies.iter().map(CdpCookie::from).collect();
    let params = json!({ "cookies": cookies });
    let set: Result<Value, _> = browser.cdp.call(None, "Storage.setCookies", params, left(until)).await;
    set.map_err(|error| match ApiError::from(error) {
        error if error.code == ErrorCode::BrowserError => ApiError::new(
            ErrorCode::InvalidCookie,
            "the browser refused one of the cookies; some of the others may be set",
        ),
        error => error,
    })?;
    let kept = get(browser, until).await?;
    let kept: HashSet<_> = kept.cookies.iter().map(|kept| (&kept.name, &kept.domain, &kept.path)).collect();
    let not_kept: Vec<usize> = request
        .cookies
        .iter()
        .enumerate()
        .filter(|(_, cookie)| !kept.contains(&(&cookie.name, &cookie.domain, &cookie.path)))
        .map(|(index, _)| index)
        .collect();
    Ok(CookiesSet { success: true, set: request.cookies.len() - not_kept.len(), not_kept })
}

pub(crate) async fn clear(browser: &Browser, until: Instant) -> Result<(), ApiError> {
    let _: Value = browser.cdp.call(None, "Storage.clearCookies", json!({}), left(until)).await?;
    Ok(())
}
