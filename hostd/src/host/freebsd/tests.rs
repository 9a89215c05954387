//! Tests on recorded output follow.
