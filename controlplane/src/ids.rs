//! Identifiers. Each is a type that holds only valid values.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Why an identifier was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {got:?} is not valid: {rule}")]
pub struct InvalidIdentifier {
    what: &'static str,
    got: String,
    rule: &'static str,
}

macro_rules! identifier {
    ($(#[$doc:meta])* $name:ident, $what:literal, $pattern:literal, $rule:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(try_from = "String", into = "String")]
        #[schemars(extend("pattern" = $pattern))]
        pub struct $name(String);

        impl $name {
            /// The identifier as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidIdentifier;
            fn try_from(text: String) -> Result<Self, InvalidIdentifier> {
                let check: fn(&str) -> bool = $check;
                if check(&text) {
                    Ok(Self(text))
                } else {
                    let got = text.chars().take(80).collect();
                    Err(InvalidIdentifier { what: $what, got, rule: $rule })
                }
            }
        }

        impl std::str::FromStr for $name {
            type Err = InvalidIdentifier;
            fn from_str(text: &str) -> Result<Self, InvalidIdentifier> {
                Self::try_from(text.to_owned())
            }
        }

        impl From<$name> for String {
            fn from(identifier: $name) -> String {
                identifier.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

fn hex(text: &str, prefix: &str) -> bool {
    text.strip_prefix(prefix).is_some_and(|digits| {
        digits.len() == 32 && digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    })
}

fn name(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphanumeric())
        && text.len() <= 64
        && bytes.all(|b| b.is_ascii_alphanumeric() || b"._:-".contains(&b))
}

identifier!(
    /// A session. It is unguessable, and also the `request_id` of the session's clone at hostd.
    SessionId,
    "session id",
    "^ses_[0-9a-f]{32}$",
    "it is `ses_` and 32 hexadecimal digits",
    |text| hex(text, "ses_")
);

identifier!(
    /// An API key's public name. It may be logged; the key's secret may not.
    KeyId,
    "key id",
    "^key_[0-9a-f]{32}$",
    "it is `key_` and 32 hexadecimal digits",
    |text| hex(text, "key_")
);

identifier!(
    /// The owner of sessions, keys, recordings and audit rows. Tenants do not see each other.
    TenantId,
    "tenant",
    "^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$",
    "use 1 to 64 letters, digits, dots, colons, dashes and underscores, beginning with a letter or a digit",
    name
);

fn random() -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system has random numbers");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl SessionId {
    /// A new id from 128 random bits.
    pub fn random() -> Self {
        Self(format!("ses_{}", random()))
    }
}

impl KeyId {
    /// A new id from 128 random bits.
    pub fn random() -> Self {
        Self(format!("key_{}", random()))
    }
}
