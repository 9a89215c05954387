//! Authentication: every call presents browserd's secret, as a header or as the first part of its path.
//!
//! The path is for clients that only take a URL, such as Playwright's `connectOverCDP`. A guess costs browserd two
//! comparisons: no body is read, nothing is logged above the debug level, and the connection is closed.

use crate::secret::Secret;
use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;

/// The path of an authenticated call, without the secret. `None`: the call does not present the secret.
pub(super) fn authenticated_path<'a>(secret: &Secret, headers: &HeaderMap, path: &'a str) -> Option<&'a str> {
    let in_header = secret.matches(bearer(headers).unwrap_or_default());
    let inner = path.strip_prefix('/').unwrap_or(path);
    let (first, rest) = inner.split_at(inner.find('/').unwrap_or(inner.len()));
    let in_path = secret.matches(first.as_bytes());
    match (in_path, in_header) {
        (true, _) if rest.is_empty() => Some("/"),
        (true, _) => Some(rest),
        (false, true) => Some(path),
        (false, false) => None,
    }
}

/// The token of the only Authorization header, if its scheme is Bearer.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let (value, None) = (all.next()?, all.next()) else { return None };
    let (scheme, token) = value.as_bytes().split_at_checked(b"Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    #[test]
    fn the_secret_is_needed_in_the_header_or_in_the_path() {
        let secret = Secret::random().unwrap();
        let other = Secret::random().unwrap();
        let (right, wrong) = (secret.as_str(), other.as_str());
        let path = |headers: &[String], path: &str| {
            let mut map = HeaderMap::new();
            for header in headers {
                map.append(AUTHORIZATION, HeaderValue::from_str(header).unwrap());
            }
            authenticated_path(&secret, &map, path).map(str::to_owned)
        };
        let bearer = |secret: &str| format!("Bearer {secret}");
        assert_eq!(path(&[bearer(right)], "/v1/tabs").as_deref(), Some("/v1/tabs"));
        assert_eq!(path(&[format!("bearer {right}")], "/v1/tabs").as_deref(), Some("/v1/tabs"));
        assert_eq!(path(&[], &format!("/{right}/v1/tabs")).as_deref(), Some("/v1/tabs"));
        assert_eq!(path(&[], &format!("/{right}/json/version/")).as_deref(), Some("/json/version/"));
        assert_eq!(path(&[], &format!("/{right}")).as_deref(), Some("/"));
        assert_eq!(path(&[bearer(wrong)], &format!("/{right}/v1/tabs")).as_deref(), Some("/v1/tabs"));
        let refused: [(&[String], String); 11] = [
            (&[], "/v1/tabs".into()),
            (&[], String::new()),
            (&[], "/".into()),
            (&[], format!("/{wrong}/v1/tabs")),
            (&[], format!("//{right}/v1/tabs")),
            (&[], format!("/v1/tabs/{right}")),
            (&[], format!("/{right}x/v1/tabs")),
            (&[bearer(wrong)], "/v1/tabs".into()),
            (&[bearer(""), bearer(right)], "/v1/tabs".into()),
            (&[right.to_owned()], "/v1/tabs".into()),
            (&[format!("Basic {right}")], "/v1/tabs".into()),
        ];
        for (headers, at) in refused {
            assert_eq!(path(headers, &at), None, "{headers:?} {at}");
        }
    }
}
