//! Cookies. Their values must never be logged.

use super::{Cookies, SetCookies};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Longest path in bytes.
const MAX_PATH: usize = 1024;

/// A cookie as in Playwright's storageState.
#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Cookie {
    /// Its name.
    pub name: String,
    /// Its value; never logged.
    pub value: String,
    /// `example.org` is host-only; `.example.org` includes all subdomains.
    pub domain: String,
    /// Its path, for example `/`.
    #[serde(default = "root_path")]
    pub path: String,
    /// Seconds since 1970; -1 for a session cookie.
    #[serde(default = "session_cookie")]
    pub expires: f64,
    /// Not accessible to scripts.
    #[serde(default)]
    pub http_only: bool,
    /// Sent only over TLS.
    #[serde(default)]
    pub secure: bool,
    /// Whether it is sent with cross-site requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same_site: Option<SameSite>,
    /// The top-level site of a partitioned cookie.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition_key: Option<String>,
    /// Whether the partition belongs to a page with a cross-site ancestor.
    #[serde(default, rename = "_crHasCrossSiteAncestor", skip_serializing_if = "Option::is_none")]
    pub has_cross_site_ancestor: Option<bool>,
}

fn root_path() -> String {
    "/".into()
}

fn session_cookie() -> f64 {
    -1.0
}

// Not derived: `{:?}` must not print the value.
impl std::fmt::Debug for Cookie {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cookie({} of {}{})", self.name, self.domain, self.path)
    }
}

impl std::fmt::Debug for SetCookies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.cookies).finish()
    }
}

impl std::fmt::Debug for Cookies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.cookies).finish()
    }
}

/// Whether a cookie is sent with cross-site requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs)]
pub enum SameSite {
    Strict,
    Lax,
    None,
}

impl Cookie {
    /// Checks what Chromium would refuse. The error names the field and never contains the value.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        let host = self.domain.strip_prefix('.').unwrap_or(&self.domain);
        let control = |text: &str| text.chars().any(|c| c.is_control());
        if self.name.is_empty() && self.value.is_empty() {
            Err("name and value are empty")
        } else if self.name.len() + self.value.len() > 4096 {
            Err("name and value together have more than 4096 bytes")
        } else if control(&self.name)
            || control(&self.value)
            || self.name.contains([';', '='])
            || self.value.contains(';')
        {
            Err("name or value contains a character that is not allowed in cookies")
        } else if host.is_empty()
            || host.len() > 253
            || host.starts_with('.')
            || host.contains(['/', ' ', '@', '\\'])
        {
            Err("domain is not a host name")
        } else if !self.path.starts_with('/') || self.path.len() > MAX_PATH || control(&self.path) {
            Err("path must start with /")
        } else if !(self.expires == -1.0 || (0.0..=1e11).contains(&self.expires)) {
            Err("expires must be -1 or seconds since 1970")
        } else if self.same_site == Some(SameSite::None) && !self.secure {
            Err("sameSite None requires secure")
        } else if self.name.starts_with("__Secure-") && !self.secure {
            Err("__Secure- requires secure")
        } else if self.name.starts_with("__Host-")
            && (!self.secure || self.path != "/" || self.domain.starts_with('.'))
        {
            Err("__Host- requires secure, path / and a host-only domain")
        } else {
            Ok(())
        }
    }
}
