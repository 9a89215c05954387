//! The secret of a clone. Only its owner gets it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Deref;

/// The number of random bytes; each is two hexadecimal digits.
const BYTES: usize = 32;

/// What a clone's browserd requires of its callers.
// Its Debug output does not show it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(extend("pattern" = "^[0-9a-f]{64}$"))]
pub struct CloneSecret(String);

/// A text that is not a secret. The text is not repeated.
#[derive(Debug, thiserror::Error)]
#[error("a secret has 64 lower-case hexadecimal digits")]
pub struct InvalidSecret;

impl CloneSecret {
    /// A new secret from the system's random source.
    ///
    /// # Panics
    ///
    /// If the kernel has no random numbers, which it always has after a boot.
    pub fn random() -> Self {
        let mut bytes = [0u8; BYTES];
        getrandom::fill(&mut bytes).expect("the kernel has random numbers");
        Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The secret as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for CloneSecret {
    type Error = InvalidSecret;

    fn try_from(text: String) -> Result<Self, InvalidSecret> {
        let hexadecimal = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        match text.len() == 2 * BYTES && text.bytes().all(hexadecimal) {
            true => Ok(Self(text)),
            false => Err(InvalidSecret),
        }
    }
}

impl From<CloneSecret> for String {
    fn from(secret: CloneSecret) -> String {
        secret.0
    }
}

impl fmt::Debug for CloneSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A URL whose path contains a clone's secret. `Debug` shows only scheme and address.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretUrl(String);

impl SecretUrl {
    /// This URL with the secret as the first part of its path.
    pub fn new(url: &str, secret: &CloneSecret) -> Self {
        let (address, path) = url.split_at(end_of_address(url));
        Self(format!("{address}/{}{path}", secret.0))
    }
}

/// Where the path of a URL begins.
fn end_of_address(url: &str) -> usize {
    let address = url.find("://").map_or(0, |at| at + 3);
    url[address..].find('/').map_or(url.len(), |at| address + at)
}

impl Deref for SecretUrl {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/***", &self.0[..end_of_address(&self.0)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_random_well_formed_and_not_shown() {
        let (one, two) = (CloneSecret::random(), CloneSecret::random());
        assert_ne!(one, two);
        assert_eq!(CloneSecret::try_from(one.as_str().to_owned()).unwrap(), one);
        assert_eq!(format!("{:?}", Some(&one)), "Some(***)");
        for bad in [String::new(), "0".repeat(63), "0".repeat(65), "G".repeat(64), "A".repeat(64)] {
            let error = serde_json::from_value::<CloneSecret>(bad.into()).unwrap_err().to_string();
            assert!(!error.contains("000"), "{error}");
        }
    }

    #[test]
    fn a_url_contains_the_secret_but_does_not_show_it() {
        let secret = CloneSecret::random();
        let url = SecretUrl::new("ws://10.0.0.1:8080/devtools/browser/x", &secret);
        assert_eq!(&*url, format!("ws://10.0.0.1:8080/{}/devtools/browser/x", secret.as_str()));
        assert_eq!(format!("{url:?}"), "ws://10.0.0.1:8080/***");
        assert_eq!(&*SecretUrl::new("ws://x", &secret), format!("ws://x/{}", secret.as_str()));
    }
}
