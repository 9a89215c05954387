//! The surfaces: HTTP, the CDP relay, the documents.

#![allow(clippy::unwrap_used)]

mod clients;
mod documents;
mod hostile;
mod relay;
mod rig;
mod routes;
mod schema;
mod typescript;
