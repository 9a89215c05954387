//! Strict reader for `zfs get -Hp -o name,property,value,source`.
//!
//! `get` is used instead of `list` because it reports the source of a value: an identity is valid only if it was set on the
//! dataset itself (`local`), not if it was inherited or received.
//!
//! One unexpected line invalidates the whole output, because a partial inspection would be misleading.

use std::collections::BTreeMap;

/// Why the output of `zfs` cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the output: {what}")]
pub struct Unreadable {
    /// Counted from 1; 0 is the whole output.
    pub line: usize,
    /// What is wrong with it.
    pub what: String,
}

/// A value with its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// The value.
    pub value: String,
    /// `local`, `default`, `received`, `inherited from …`, or `-`.
    pub source: String,
}

impl Value {
    /// The value if it was set on the dataset itself.
    pub fn local(&self) -> Option<&str> {
        (self.source == "local").then_some(self.value.as_str())
    }
}

/// The properties of datasets, by their names.
pub type Table = BTreeMap<String, Vec<Value>>;

/// Read the output: for each dataset exactly these properties, in this order.
pub fn read(text: &str, properties: &[&str]) -> Result<Table, Unreadable> {
    let wrong = |line: usize, what: String| Err(Unreadable { line, what });
    let mut table = Table::new();
    if text.is_empty() {
        return Ok(table);
    }
    let Some(text) = text.strip_suffix('\n') else { return wrong(0, "it is cut off".into()) };
    let mut current: Option<(String, Vec<Value>)> = None;
    for (index, line) in text.split('\n').enumerate() {
        let number = index + 1;
        let fields: Vec<&str> = line.split('\t').collect();
        let [name, property, value, source] = fields.as_slice() else {
            return wrong(number, format!("{} columns instead of 4", fields.len()));
        };
        let (dataset, mut values) = current.take().unwrap_or_else(|| ((*name).to_owned(), Vec::new()));
        let expected = properties[values.len()];
        if *name != dataset || *property != expected {
            return wrong(number, format!("{property:?} of {name:?} instead of {expected:?} of {dataset:?}"));
        }
        if !is_dataset(name) {
            return wrong(number, format!("{name:?} is no dataset's name"));
        }
        if !is_source(source) {
            return wrong(number, format!("{source:?} is no source of a property"));
        }
        values.push(Value { value: (*value).to_owned(), source: (*source).to_owned() });
        if values.len() < properties.len() {
            current = Some((dataset, values));
        } else if table.insert(dataset.clone(), values).is_some() {
            return wrong(number, format!("{dataset:?} comes twice"));
        }
    }
    match current {
        Some((dataset, _)) => wrong(0, format!("it ends in the middle of {dataset:?}")),
        None => Ok(table),
    }
}

/// Characters that ZFS allows, blanks among them, and at most one `@`.
fn is_dataset(name: &str) -> bool {
    let (path, snapshot) =
        name.split_once('@').map_or((name, None), |(path, snapshot)| (path, Some(snapshot)));
    let plain = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.: ".contains(&byte))
    };
    path.split('/').all(plain) && snapshot.is_none_or(plain)
}

fn is_source(source: &str) -> bool {
    matches!(source, "local" | "default" | "received" | "temporary" | "-")
        || source.strip_prefix("inherited from ").is_some_and(is_dataset)
}

/// `yes` or `no`; ZFS writes some as `on` and `off`.
pub fn flag(value: &Value) -> Result<bool, Unreadable> {
    match value.value.as_str() {
        "yes" | "on" => Ok(true),
        "no" | "off" => Ok(false),
        other => Err(Unreadable { line: 0, what: format!("{other:?} is neither yes nor no") }),
    }
}

/// A whole number.
pub fn number(value: &Value) -> Result<u64, Unreadable> {
    let digits = value.value.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| value.value.parse().ok()).flatten();
    number.ok_or_else(|| Unreadable { line: 0, what: format!("{:?} is no number", value.value) })
}
