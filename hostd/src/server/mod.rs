//! The daemon around the lifecycle.
