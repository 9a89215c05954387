//! TypeScript types from the OpenRPC document.

use serde_json::Value;
use std::fmt::Write;

/// Everything that crosses the socket, as TypeScript sees it.
pub(super) fn contract(document: &Value) -> String {
    let mut text = String::from(
        "// Generated from docs/openrpc.json; do not edit.\n\
         // HOSTD_UPDATE_DOCS=1 cargo test -p hostctl\n",
    );
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        text.push('\n');
        doc(&mut text, "", schema);
        match schema["properties"].as_object() {
            Some(fields) => {
                let required = schema["required"].as_array().cloned().unwrap_or_default();
                let fields = fields
                    .iter()
                    .map(|(name, field)| (name.as_str(), field, required.contains(&name.as_str().into())));
                interface(&mut text, name, fields);
            }
            None => {
                let _ = writeln!(text, "export type {name} = {};", kind(schema));
            }
        }
    }
    let methods = document["methods"].as_array().unwrap();
    for method in methods {
        let params = method["params"].as_array().unwrap();
        let _ = writeln!(text, "\n/** Parameters of `{}`. */", word(&method["name"]));
        let fields = params.iter().map(|param| (word(&param["name"]), param, param["required"] == true));
        interface(&mut text, &params_name(method), fields);
    }
    for notification in document["x-notifications"].as_array().unwrap() {
        let _ = writeln!(text, "\n/** {} */", word(&notification["summary"]));
        let params = notification["params"].as_array().unwrap();
        let fields = params.iter().map(|param| (word(&param["name"]), param, param["required"] == true));
        interface(&mut text, "Progress", fields);
    }
    text.push_str("\n/** Every method with its parameters and result. */\nexport interface Methods {\n");
    for method in methods {
        doc(&mut text, "  ", &serde_json::json!({ "description": method["summary"] }));
        let result = kind(&method["result"]["schema"]);
        let _ =
            writeln!(text, "  {}: {{ params: {}; result: {result} }};", method["name"], params_name(method));
    }
    text + "}\n"
}

/// `CreateResult` goes with `CreateParams`; only the document itself is no type of ours.
fn params_name(method: &Value) -> String {
    match word(&method["result"]["name"]).strip_suffix("Result") {
        Some(stem) => format!("{stem}Params"),
        None => "DiscoverParams".into(),
    }
}

fn interface<'a>(text: &mut String, name: &str, fields: impl Iterator<Item = (&'a str, &'a Value, bool)>) {
    let _ = writeln!(text, "export interface {name} {{");
    for (field, schema, required) in fields {
        doc(text, "  ", schema);
        let schema = schema.get("schema").unwrap_or(schema);
        let _ = writeln!(text, "  {field}{}: {};", if required { "" } else { "?" }, kind(schema));
    }
    text.push_str("}\n");
}

fn doc(text: &mut String, indent: &str, schema: &Value) {
    if let Some(words) = schema["description"].as_str() {
        let _ = writeln!(text, "{indent}/** {} */", words.replace('\n', " "));
    }
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is not text"))
}

/// The type of a value. What may be null may also be left out, and hostd never sends null: it is left out here.
fn kind(schema: &Value) -> String {
    if let Some(path) = schema["$ref"].as_str() {
        return path.rsplit('/').next().unwrap().to_owned();
    }
    if let Some(constant) = schema.get("const") {
        return constant.to_string();
    }
    for choices in ["anyOf", "oneOf", "enum"] {
        if let Some(choices) = schema[choices].as_array() {
            let choices: Vec<String> = choices
                .iter()
                .filter(|choice| choice["type"] != "null")
                .map(|choice| if choice.is_string() { choice.to_string() } else { kind(choice) })
                .collect();
            return choices.join(" | ");
        }
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::Array(types) => types.iter().map(word).filter(|kind| *kind != "null").collect(),
        one => vec![word(one)],
    };
    match types.as_slice() {
        ["string"] => "string".into(),
        ["boolean"] => "boolean".into(),
        ["integer" | "number"] => "number".into(),
        ["array"] => format!("{}[]", kind(&schema["items"])),
        ["object"] => match &schema["additionalProperties"] {
            Value::Null => "Record<string, unknown>".into(),
            values => format!("Record<string, {}>", kind(values)),
        },
        other => panic!("no TypeScript for {other:?} in {schema}"),
    }
}
