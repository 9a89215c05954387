//! The tools, made from the table of verbs.

use crate::actions::{Effect, Target, Verb, verbs};
use axum::http::Method;
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};
use std::sync::{Arc, LazyLock};

/// Which tools a client is offered. Every tool can be called, whatever was offered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ToolSet {
    /// The tools that most tasks need. A short list leaves more of a model's context to its task.
    #[default]
    Core,
    /// A tool for every verb.
    All,
}

impl std::str::FromStr for ToolSet {
    type Err = String;
    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "core" => Ok(ToolSet::Core),
            "all" => Ok(ToolSet::All),
            _ => Err("use core or all".into()),
        }
    }
}

impl ToolSet {
    /// Whether the verb is in the set.
    pub fn has(self, verb: &Verb) -> bool {
        self == ToolSet::All || verb.core
    }
}

/// Fields of results that hold a file. They become content blocks of their own and are left out of the structured result.
pub(super) fn is_file(name: &str) -> bool {
    name.ends_with("_base64")
}

/// Every verb with its tool, in the order of the table.
pub fn tools() -> &'static [(&'static Verb, Tool)] {
    static TOOLS: LazyLock<Vec<(&'static Verb, Tool)>> =
        LazyLock::new(|| verbs().iter().map(|verb| (verb, tool(verb))).collect());
    &TOOLS
}

/// The verb and tool of this name: `browser_navigate`, or with a dot.
pub(super) fn find(name: &str) -> Option<&'static (&'static Verb, Tool)> {
    let verb = name.strip_prefix("browser_").or_else(|| name.strip_prefix("browser."))?;
    tools().iter().find(|(known, _)| known.name == verb)
}

fn tool(verb: &'static Verb) -> Tool {
    let (reads, destroys) = (verb.effect == Effect::Read, verb.effect == Effect::Destructive);
    let annotations = ToolAnnotations::with_title(title(verb.name))
        .read_only(reads)
        .destructive(destroys)
        // Repeating a DELETE changes nothing more.
        .idempotent(reads || verb.method == Method::DELETE)
        .open_world(verb.target == Target::Tab);
    Tool::new(format!("browser_{}", verb.name), verb.summary, input(verb))
        .with_raw_output_schema(Arc::new(output(verb)))
        .with_title(title(verb.name))
        .with_annotations(annotations)
}

/// `new_tab` as people write it: `New tab`.
fn title(name: &str) -> String {
    let mut words = name.replace('_', " ");
    if let Some(first) = words.get_mut(0..1) {
        first.make_ascii_uppercase();
    }
    words
}

fn object(mut schema: Value) -> JsonObject {
    without_widths(&mut schema);
    let Value::Object(mut schema) = schema else {
        unreachable!("the schemas of the table are objects");
    };
    schema.remove("$schema");
    schema.remove("title");
    schema
}

/// The parameters, and the session for verbs that have one.
fn input(verb: &Verb) -> JsonObject {
    let mut schema = object((verb.params)());
    // The tool's description says what the type's would.
    schema.remove("description");
    schema.insert("type".into(), "object".into());
    if verb.target == Target::Service {
        schema.entry("properties").or_insert_with(|| json!({}));
        return schema;
    }
    let session = json!({
        "type": "string",
        "description": "The session_id that browser_open_session returned.",
        "pattern": "^ses_[0-9a-f]{32}$",
    });
    let mut properties = JsonObject::new();
    properties.insert("session_id".into(), session);
    if let Some(Value::Object(own)) = schema.remove("properties") {
        properties.extend(own);
    }
    schema.insert("properties".into(), Value::Object(properties));
    let mut required = vec![Value::from("session_id")];
    if let Some(Value::Array(own)) = schema.remove("required") {
        required.extend(own);
    }
    schema.insert("required".into(), Value::Array(required));
    schema
}

/// The schema without the widths of numbers (`"format": "uint64"`): they are not words of JSON Schema, and clients warn of each.
fn without_widths(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.retain(|name, value| name != "format" || !value.is_string());
            fields.values_mut().for_each(without_widths);
        }
        Value::Array(items) => items.iter_mut().for_each(without_widths),
        _ => {}
    }
}

/// The result without its files.
fn output(verb: &Verb) -> JsonObject {
    let mut schema = Value::Object(object((verb.result)()));
    remove_files(&mut schema);
    let mut schema = object(schema);
    schema.insert("type".into(), "object".into());
    schema
}

fn remove_files(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if let Some(Value::Object(properties)) = fields.get_mut("properties") {
                properties.retain(|name, _| !is_file(name));
            }
            if let Some(Value::Array(required)) = fields.get_mut("required") {
                required.retain(|name| !name.as_str().is_some_and(is_file));
            }
            fields.values_mut().for_each(remove_files);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_files),
        _ => {}
    }
}
