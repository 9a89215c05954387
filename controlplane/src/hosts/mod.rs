//! Clones: the connection to hostd.
