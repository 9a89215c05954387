//! The secret of a browserd. Every call except the two probes must present it.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;
use subtle::ConstantTimeEq;

/// The allowed lengths in characters. The shortest still has 192 bits if it is random.
const LENGTHS: std::ops::RangeInclusive<usize> = 32..=128;
/// The number of random bytes in a new secret.
const RANDOM_BYTES: usize = 32;

/// A secret of 32 to 128 letters, digits, `-` or `_`, so that it can be a header's value and a part of a URL's path.
/// Its `Debug` output does not show it.
#[derive(Clone)]
pub struct Secret(String);

/// A text that cannot be a secret. The text is not repeated.
#[derive(Debug, thiserror::Error)]
#[error("a secret has 32 to 128 letters, digits, - or _")]
pub struct InvalidSecret;

impl Secret {
    /// A new secret from the system's random source.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; RANDOM_BYTES];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        Ok(Self(URL_SAFE_NO_PAD.encode(bytes)))
    }

    /// Reads a secret until the end of the input. One line break at the end is allowed.
    pub(crate) fn read(input: impl Read) -> io::Result<Self> {
        let mut text = String::new();
        input.take(*LENGTHS.end() as u64 + 2).read_to_string(&mut text)?;
        let text = text.strip_suffix('\n').unwrap_or(&text);
        text.parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// The secret as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is the secret. The time does not depend on where the two differ.
    pub(crate) fn matches(&self, presented: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(presented).into()
    }
}

impl FromStr for Secret {
    type Err = InvalidSecret;

    fn from_str(text: &str) -> Result<Self, InvalidSecret> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        match LENGTHS.contains(&text.len()) && text.bytes().all(allowed) {
            true => Ok(Self(text.to_owned())),
            false => Err(InvalidSecret),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_secrets_differ_are_valid_and_are_not_shown() {
        let (one, two) = (Secret::random().unwrap(), Secret::random().unwrap());
        assert_ne!(one.as_str(), two.as_str());
        assert_eq!(one.as_str().len(), 43, "32 bytes");
        assert!(one.as_str().parse::<Secret>().is_ok());
        assert_eq!(format!("{one:?}"), "***");
    }

    #[test]
    fn only_the_whole_secret_matches() {
        let secret = Secret::random().unwrap();
        let text = secret.as_str().to_owned();
        assert!(secret.matches(text.as_bytes()));
        for wrong in [&text[1..], &text[..42], "", &format!("{text}x"), &text.to_lowercase()] {
            assert!(!secret.matches(wrong.as_bytes()), "{wrong}");
        }
    }

    #[test]
    fn a_secret_is_read_from_a_descriptor_or_refused() {
        let text = "x".repeat(43);
        assert_eq!(Secret::read(text.as_bytes()).unwrap().as_str(), text);
        assert_eq!(Secret::read(format!("{text}\n").as_bytes()).unwrap().as_str(), text);
        let long = "x".repeat(129);
        for bad in ["", "short", &long, &format!("{text} "), &format!("{text}/"), &format!("{text}\n\n")] {
            let error = Secret::read(bad.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("32 to 128") && !error.contains("xxx"), "{error}");
        }
    }
}
