//! The configuration of a daemon in layers: defaults < file < drop-ins < environment < flags.
//!
//! The types are the only description. The commented default file, the environment variables (`HOSTD_SECTION_KEY`), the
//! `--set section.key=value` flag and the hints for unknown keys come from their JSON schema. A program implements
//! [`Settings`] for the type of its whole configuration.

mod keys;
mod load;
mod reference;
mod toml_text;
pub mod trusted_path;

pub use keys::{ConfigKey, ConfigSection, sections};
pub use load::{ConfigError, ConfigProblem, SettingOrigin, load, out_of_range};
pub use reference::reference;
pub use toml_text::{default_toml, effective_toml};

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::PathBuf;

/// A system whose defaults differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    /// Linux.
    Linux,
    /// FreeBSD.
    Freebsd,
}

impl System {
    /// The system of this build.
    pub const THIS: System = if cfg!(target_os = "freebsd") { System::Freebsd } else { System::Linux };
}

/// The whole configuration of one program: a struct of sections, each a struct of keys or a list of tables.
pub trait Settings: Serialize + DeserializeOwned + JsonSchema {
    /// The program: `hostd`. Its variables begin with this name in capital letters.
    const PROGRAM: &'static str;
    /// Variables that begin like settings but are none, and what reads them. The program ignores them.
    const RESERVED_VARIABLES: &'static [(&'static str, &'static str)];
    /// Variables of other programs that also set a key: the variable and the key. The key's own variable wins.
    const OTHER_VARIABLES: &'static [(&'static str, &'static str)];
    /// A key and a value for the examples in the default file.
    const EXAMPLE: (&'static str, &'static str);

    /// The defaults on a system. Every build knows those of both systems, because the documentation names both.
    fn defaults(system: System) -> Self;
    /// The file that is read when none is named.
    fn default_file() -> PathBuf;
    /// Report every problem at once: ranges ([`out_of_range`]), relations between keys, valid paths.
    fn check(&self) -> Result<(), ConfigError>;
}

/// What the variables of a program begin with: `HOSTD_`.
pub fn variable_prefix<C: Settings>() -> String {
    format!("{}_", C::PROGRAM.to_ascii_uppercase())
}
