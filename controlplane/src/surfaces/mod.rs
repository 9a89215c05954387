//! The protocols that callers speak. Each is a thin mapping onto [`App`](crate::app::App).
