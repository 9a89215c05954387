//! The catalogue of keys from the JSON schema of the types: names, meanings, defaults.

use crate::{Settings, System, variable_prefix};
use serde_json::Value;

/// One section of the file.
#[derive(Debug, Clone)]
pub struct ConfigSection {
    prefix: String,
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
        format!("{}{}{key}", self.prefix, self.name).to_ascii_uppercase()
    }
}

/// All sections, in the order of the types.
pub fn sections<C: Settings>() -> Vec<ConfigSection> {
    let schema = schemars::schema_for!(C).to_value();
    let linux = defaults::<C>(System::Linux);
    let freebsd = defaults::<C>(System::Freebsd);
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
                prefix: variable_prefix::<C>(),
                name: name.clone(),
                doc: text(&property["description"]),
                list,
                keys: keys.collect(),
                default: linux[name].clone(),
            }
        })
        .collect()
}

fn defaults<C: Settings>(system: System) -> Value {
    serde_json::to_value(C::defaults(system)).expect("the configuration is plain data")
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
