//! Identifiers that callers send. Each is a type that holds only valid values.
//!
//! They are validated while the message is parsed, so no other code sees a request id with a newline, a snapshot called
//! `../x` or a name that a tool would take for an option.

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

fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
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
                    Err(InvalidIdentifier { what: $what, got: shortened(&text), rule: $rule })
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

fn letters(text: &str, max: usize, extra: &str) -> bool {
    let mut bytes = text.bytes();
    let first = bytes.next().is_some_and(|b| b.is_ascii_alphanumeric());
    first && text.len() <= max && bytes.all(|b| b.is_ascii_alphanumeric() || extra.as_bytes().contains(&b))
}

identifier!(
    /// The idempotency key of a create. Repeating it renews the lease of the same clone.
    RequestId,
    "request_id",
    r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$",
    "1 to 128 letters, digits or . _ : - and a letter or digit first",
    |text| letters(text, 128, "._:-")
);

identifier!(
    /// The tenant that a clone is counted for; it grants no rights.
    Tenant,
    "tenant",
    r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$",
    "1 to 64 letters, digits or . _ : - and a letter or digit first",
    |text| letters(text, 64, "._:-")
);

identifier!(
    /// A template's snapshot, by its bare name.
    SnapshotName,
    "snapshot",
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
    "1 to 64 letters, digits or . _ - and a letter or digit first",
    |text| letters(text, 64, "._-")
);

identifier!(
    /// A clone's name: the configured prefix and the three digits of its slot.
    CloneName,
    "name",
    r"^[a-z][a-z0-9]{0,31}[0-9]{3}$",
    "the configured prefix and three digits, such as browsertask001",
    |text| {
        let Some(split) = text.len().checked_sub(3).filter(|split| (1..=32).contains(split)) else { return false };
        text.is_ascii()
            && text.as_bytes()[0].is_ascii_lowercase()
            && text[..split].bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
            && text[split..].bytes().all(|b| b.is_ascii_digit())
    }
);

identifier!(
    /// The unique id of one clone. A destroy must name it (fencing).
    CloneId,
    "clone_id",
    r"^[0-9a-f]{32}$",
    "32 lower-case hexadecimal digits, as browser-clone-create returned them",
    |text| text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
);

identifier!(
    /// Chosen by the caller and repeated in every progress notification of the request.
    ProgressToken,
    "progress_token",
    r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$",
    "1 to 64 letters, digits or . _ : - and a letter or digit first",
    |text| letters(text, 64, "._:-")
);

impl CloneId {
    /// A new identity from the system's random source.
    pub fn random() -> Self {
        Self(uuid::Uuid::new_v4().simple().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harmful_identifiers_are_refused() {
        for bad in ["", "-x", ".hidden", "a/b", "a b", "a\n", "a\0", "ä", "../x", "@snap"] {
            assert!(bad.parse::<SnapshotName>().is_err(), "{bad:?} as snapshot");
            assert!(bad.parse::<RequestId>().is_err(), "{bad:?} as request id");
            assert!(bad.parse::<Tenant>().is_err(), "{bad:?} as tenant");
            assert!(bad.parse::<CloneName>().is_err(), "{bad:?} as name");
            assert!(bad.parse::<CloneId>().is_err(), "{bad:?} as clone id");
        }
        assert!("a".repeat(129).parse::<RequestId>().is_err());
        assert!("a".repeat(128).parse::<RequestId>().is_ok());
    }

    #[test]
    fn names_need_a_prefix_and_three_digits() {
        for good in ["browsertask001", "a000", "bt7x999"] {
            assert!(good.parse::<CloneName>().is_ok(), "{good}");
        }
        for bad in ["001", "browsertask01", "Browsertask001", "1bt001", "browsertask00x", "é001"] {
            assert!(bad.parse::<CloneName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn clone_ids_are_random_and_well_formed() {
        let (one, two) = (CloneId::random(), CloneId::random());
        assert_ne!(one, two);
        assert!(one.as_str().parse::<CloneId>().is_ok());
        assert!("0123456789ABCDEF0123456789ABCDEF".parse::<CloneId>().is_err());
    }

    #[test]
    fn a_refusal_names_the_rule_and_is_short() {
        let error = "x ".repeat(500).parse::<Tenant>().unwrap_err().to_string();
        assert!(error.contains("1 to 64 letters"), "{error}");
        assert!(error.len() < 250, "{error}");
    }
}
