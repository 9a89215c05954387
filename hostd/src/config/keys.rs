//! The catalogue of keys from the JSON schema of the types: names, meanings, defaults.

use super::Config;
use crate::platform::DefaultDirs;
use serde_json::Value;

/// Variables that begin with `HOSTD_` but are not settings. The daemon ignores them.
pub const RESERVED_VARIABLES: &[(&str, &str)] = &[
    ("HOSTD_CONFIG", "hostd and hostctl doctor: the configuration file, as --config"),
    (
        "HOSTD_SOCKET",
        "clients: the socket to connect to, as --socket (the daemon's own is HOSTD_PATHS_SOCKET)",
    ),
    ("HOSTD_TIMEOUT", "hostctl: how long to wait for an answer, as --timeout"),
];

/// A variable of the template's setup that also sets `freebsd.template_ip`. HOSTD_FREEBSD_TEMPLATE_IP wins.
pub const TEMPLATE_IP: &str = "WARDEN_BROWSER_IP";

/// One section of the file.
#[derive(Debug, Clone)]
pub struct ConfigSection {
    /// Its name: `[pool]`, or `[[access]]` for a list.
    pub name: String,
    /// Its description.
    pub doc: String,
    /// Whether it is a list of tables. A list is always set as a whole.
    pub list: bool,
    /// Its keys, in the order of the types.
    pub keys: Vec<ConfigKey>,
    /// The default of a list.
    pub default: Value,
}

/// One key.
#[derive(Debug, Clone)]
pub struct ConfigKey {
    /// Its name within the section.
    pub name: String,
    /// What it means.
    pub doc: String,
    /// The expected value as text.
    pub expects: String,
    /// Whether its values are text. Text needs no quotes in a variable or a flag.
    pub text: bool,
    /// The smallest and the largest allowed number.
    pub range: (Option<u64>, Option<u64>),
    /// Its default on Linux.
    pub default: Value,
    /// Its default on FreeBSD, where that differs.
    pub default_freebsd: Option<Value>,
}

impl ConfigSection {
    /// The variable that sets the key, or the whole list when there is no key.
    pub fn variable(&self, key: Option<&ConfigKey>) -> String {
        let key = key.map(|key| format!("_{}", key.name)).unwrap_or_default();
        format!("HOSTD_{}{key}", self.name).to_ascii_uppercase()
    }
}

/// All sections, in the order of the types.
pub fn sections() -> Vec<ConfigSection> {
    let schema = schemars::schema_for!(Config).to_value();
    let linux = defaults(&DefaultDirs::linux());
    let freebsd = defaults(&DefaultDirs::freebsd());
    properties(&schema)
        .map(|(name, property)| {
            let list = property["type"] == "array";
            let table = resolve(&schema, if list { &property["items"] } else { property });
            let keys = properties(table).map(|(key, property)| {
                let kind = resolve(&schema, property);
                let default = if list { property["default"].clone() } else { linux[name][key].clone() };
                let other = &freebsd[name][key];
                ConfigKey {
                    name: key.clone(),
                    doc: text(&property["description"]),
                    expects: expects(&schema, kind),
                    text: is_text(kind),
                    range: (kind["minimum"].as_u64(), kind["maximum"].as_u64()),
                    default_freebsd: (!list && *other != default).then(|| other.clone()),
                    default,
                }
            });
            ConfigSection {
                name: name.clone(),
                doc: text(&property["description"]),
                list,
                keys: keys.collect(),
                default: linux[name].clone(),
            }
        })
        .collect()
}

fn defaults(dirs: &DefaultDirs) -> Value {
    serde_json::to_value(Config::below(dirs)).expect("the configuration is plain data")
}

fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema["properties"].as_object().into_iter().flatten()
}

/// The schema itself, or what it refers to.
fn resolve<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(path) => root.pointer(path.trim_start_matches('#')).expect("schemars' references resolve"),
        None => schema,
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().replace('\n', " ")
}

/// The values of an enumeration, if the schema is one.
fn words(schema: &Value) -> Option<Vec<&str>> {
    if let Some(one_of) = schema["oneOf"].as_array() {
        return one_of.iter().map(|choice| choice["const"].as_str()).collect();
    }
    schema["enum"].as_array()?.iter().map(Value::as_str).collect()
}

fn is_text(schema: &Value) -> bool {
    schema["type"] == "string" || words(schema).is_some()
}

/// The expected value as text.
fn expects(root: &Value, schema: &Value) -> String {
    if let Some(words) = words(schema) {
        return match words.as_slice() {
            [only] => format!("`{only}`"),
            [first @ .., last] => format!("`{}` or `{last}`", first.join("`, `")),
            [] => "nothing".into(),
        };
    }
    match schema["type"].as_str() {
        Some("array") => format!("a list of {}", expects(root, resolve(root, &schema["items"]))),
        Some("integer") => match (schema["minimum"].as_u64(), schema["maximum"].as_u64()) {
            (Some(least @ 1..), Some(most)) => format!("a whole number from {least} to {most}"),
            (Some(least @ 1..), None) => format!("a whole number from {least}"),
            (_, Some(most)) => format!("a whole number up to {most}"),
            (_, None) => "a whole number".into(),
        },
        Some("boolean") => "`true` or `false`".into(),
        _ => "text".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_key_has_a_description_and_its_own_variable() {
        let mut variables = BTreeSet::new();
        for section in sections() {
            assert!(!section.doc.is_empty(), "{}", section.name);
            assert!(!section.keys.is_empty(), "{}", section.name);
            for key in &section.keys {
                assert!(!key.doc.is_empty(), "{}.{}", section.name, key.name);
                assert!(!key.default.is_null(), "{}.{}", section.name, key.name);
                if !section.list {
                    assert!(variables.insert(section.variable(Some(key))), "{}.{}", section.name, key.name);
                }
            }
            assert!(variables.insert(section.variable(None)), "{}", section.name);
        }
        for (reserved, _) in RESERVED_VARIABLES {
            assert!(variables.insert((*reserved).to_owned()), "{reserved} is also a key");
        }
        assert!(variables.contains("HOSTD_CLONE_LIMITS_MEMORY_BYTES"));
    }

    #[test]
    fn the_catalogue_and_the_defaults_have_the_same_keys() {
        let defaults = serde_json::to_value(Config::default()).unwrap();
        let sections = sections();
        assert_eq!(
            defaults.as_object().unwrap().keys().collect::<Vec<_>>(),
            sections.iter().map(|section| &section.name).collect::<Vec<_>>()
        );
        for section in sections.iter().filter(|section| !section.list) {
            let keys: Vec<_> = defaults[&section.name].as_object().unwrap().keys().collect();
            assert_eq!(
                keys,
                section.keys.iter().map(|key| &key.name).collect::<Vec<_>>(),
                "{}",
                section.name
            );
        }
    }

    #[test]
    fn the_two_systems_differ_only_in_folders() {
        let differ: Vec<_> = sections()
            .into_iter()
            .flat_map(|section| section.keys.into_iter().filter(|key| key.default_freebsd.is_some()))
            .map(|key| key.name)
            .collect();
        assert_eq!(differ, ["socket", "state", "clones_dir"]);
    }
}
