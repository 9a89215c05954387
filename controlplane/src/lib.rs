//! The control plane: sessions, access, audit, recording, and the tools that agents call.
//!
//! It is unprivileged and above hostd. hostd makes and removes clones; this program decides who may open a session on one,
//! writes down what was done, and speaks the protocols of agents. Modules depend only on modules above them in this list.

pub mod error;
pub mod ids;
pub mod time;

pub mod access;
pub mod config;

pub mod store;

pub mod audit;

pub mod hosts;

pub mod recording;

pub mod sessions;

pub mod actions;

pub mod app;

pub mod surfaces;
