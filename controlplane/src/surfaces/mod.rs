//! The protocols that callers speak. Each is a thin mapping onto [`App`](crate::app::App).

pub mod http;
pub mod mcp;
pub mod metrics;
pub mod relay;
pub mod service;
