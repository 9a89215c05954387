//! Configuration: one value, checked whole before the daemon does anything.
//!
//! The types in `types.rs` are the only description: the commented default file, the environment
//! variables (`HOSTD_SECTION_KEY`), the `--set section.key=value` flag and the unknown-key hints all
//! come from them, through their JSON schema (`keys.rs`).

mod check;
mod default_file;
mod effective;
mod keys;
mod load;
mod types;

pub use default_file::default_toml;
pub use effective::effective_toml;
pub use keys::{Key, RESERVED_VARIABLES, Section, TEMPLATE_IP, sections};
pub use load::{ConfigError, Origin, Problem, default_file, load};
pub use types::*;
