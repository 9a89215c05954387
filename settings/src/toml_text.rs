//! The configuration as TOML: the commented default file and the settings in effect.
//!
//! The default file shows every setting commented out, so it changes nothing and is the same on both systems.

use crate::keys::{ConfigKey, ConfigSection, sections};
use crate::{Settings, variable_prefix};
use serde_json::Value;
use std::fmt::Write;

const WIDTH: usize = 100;

/// The commented default file.
pub fn default_toml<C: Settings>() -> String {
    let mut text = String::new();
    let (key, value) = C::EXAMPLE;
    let variable = format!("{}{}", variable_prefix::<C>(), key.replace('.', "_").to_ascii_uppercase());
    comment(
        &mut text,
        &format!(
            "{}'s configuration. Every setting is shown with its default and commented out: remove the # to change it.",
            C::PROGRAM
        ),
    );
    comment(
        &mut text,
        &format!(
            "Later layers win: this file, conf.d/*.toml beside it in the order of their names, variables such as \
             {variable}, flags such as --set {key}={value}. Unknown keys are errors; \
             `{} --check-config` reports what is wrong.",
            C::PROGRAM
        ),
    );
    for section in sections::<C>() {
        text.push('\n');
        comment(&mut text, &section.doc);
        match section.list {
            true => list(&mut text, &section),
            false => table(&mut text, &section),
        }
    }
    text
}

/// Every setting as `section.key = value`, for people and scripts. Loading the text gives the same configuration.
pub fn effective_toml<C: Settings>(config: &C) -> String {
    let values = serde_json::to_value(config).expect("a configuration is plain data");
    let mut text = String::new();
    for section in sections::<C>() {
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

fn table(text: &mut String, section: &ConfigSection) {
    let _ = writeln!(text, "[{}]", section.name);
    for key in &section.keys {
        text.push('\n');
        comment(text, &describe(key));
        let default = toml_value(&key.default);
        let _ = match &key.default_freebsd {
            None => writeln!(text, "#{} = {default}", key.name),
            Some(other) => writeln!(text, "#{} = {default}  # FreeBSD: {}", key.name, toml_value(other)),
        };
    }
}

fn list(text: &mut String, section: &ConfigSection) {
    for key in &section.keys {
        comment(text, &format!("{}: {}", key.name, describe(key)));
    }
    if section.default.as_array().is_some_and(Vec::is_empty) {
        comment(text, &format!("Each entry begins with the line [[{}]].", section.name));
    }
    for item in section.default.as_array().into_iter().flatten() {
        let _ = writeln!(text, "\n#[[{}]]", section.name);
        for key in section.keys.iter().filter(|key| item[&key.name] != key.default) {
            let _ = writeln!(text, "#{} = {}", key.name, toml_value(&item[&key.name]));
        }
    }
}

/// The key's meaning, and its possible values.
fn describe(key: &ConfigKey) -> String {
    let words = key.expects.contains('`') && !key.doc.contains('`') && !key.default.is_boolean();
    if words { format!("{} ({})", key.doc, key.expects) } else { key.doc.clone() }
}

/// A value as TOML. Strings, numbers, booleans and lists look the same in JSON.
fn toml_value(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(toml_value).collect::<Vec<_>>().join(", ")),
        Value::Object(keys) => {
            let keys = keys.iter().map(|(key, value)| format!("{key} = {}", toml_value(value)));
            format!("{{ {} }}", keys.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

fn comment(text: &mut String, words: &str) {
    let mut line = String::from("#");
    for word in words.split_whitespace() {
        if line.len() + 1 + word.len() > WIDTH {
            let _ = writeln!(text, "{line}");
            line = String::from("#");
        }
        line.push(' ');
        line.push_str(word);
    }
    let _ = writeln!(text, "{line}");
}
