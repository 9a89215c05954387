//! The settings in effect, one a line: for people who wonder which layer won, and for scripts that set up the system
//! around hostd.

use super::default_file::toml_value;
use super::keys::sections;
use super::types::Config;
use std::fmt::Write;

/// Every setting as `section.key = value`: TOML that, used as the file, means this configuration.
pub fn effective_toml(config: &Config) -> String {
    let values = serde_json::to_value(config).expect("a configuration is plain data");
    let mut text = String::new();
    for section in sections() {
        let value = &values[&section.name];
        if section.list {
            let _ = writeln!(text, "{} = {}", section.name, toml_value(value));
        } else {
            for key in &section.keys {
                let _ = writeln!(text, "{}.{} = {}", section.name, key.name, toml_value(&value[&key.name]));
            }
        }
    }
    text
}
