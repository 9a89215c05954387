//! hostd.
