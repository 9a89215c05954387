//! The OpenAPI 3.1 document, from the table of verbs and the table of the service's own calls.

use super::admin::{Answer, ServiceCall, service_calls};
use super::answers;
use super::verbs::{DOWNLOAD, DownloadQuery, FILES, FileName, success};
use crate::access::Scope;
use crate::actions::{Verb, verb, verbs};
use crate::error::{ErrorBody, ErrorCode};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

pub(super) async fn serve() -> Response {
    static DOCUMENT: LazyLock<String> = LazyLock::new(|| document().to_string());
    answers::bytes(StatusCode::OK, "application/json", DOCUMENT.as_str())
}

/// Types by name, moved from the schemas of the calls.
#[derive(Default)]
struct Types(Map<String, Value>);

impl Types {
    /// The schema with its definitions moved into the document's components. A named type becomes a component too.
    fn add(&mut self, schema: Value) -> Value {
        let mut schema = schema;
        let Some(object) = schema.as_object_mut() else { return schema };
        object.remove("$schema");
        if let Some(Value::Object(definitions)) = object.remove("$defs") {
            for (name, definition) in definitions {
                let definition = self.add(definition);
                self.named(name, definition);
            }
        }
        let mut schema = renamed(schema);
        match schema.as_object_mut().and_then(|object| object.remove("title")) {
            Some(Value::String(name)) => self.named(name, schema),
            _ => schema,
        }
    }

    /// Two types of the same name must be the same type; another one gets a number.
    fn named(&mut self, name: String, schema: Value) -> Value {
        let mut unique = name.clone();
        for number in 2.. {
            match self.0.get(&unique) {
                Some(known) if *known == schema => break,
                None => {
                    self.0.insert(unique.clone(), schema);
                    break;
                }
                Some(_) => unique = format!("{name}{number}"),
            }
        }
        json!({ "$ref": format!("#/components/schemas/{unique}") })
    }
}

/// References to definitions as references to components.
fn renamed(value: Value) -> Value {
    match value {
        Value::Object(object) => Value::Object(
            object
                .into_iter()
                .map(|(key, value)| match (key.as_str(), value) {
                    ("$ref", Value::String(reference)) => {
                        (key, Value::String(reference.replacen("#/$defs/", "#/components/schemas/", 1)))
                    }
                    (_, value) => (key, renamed(value)),
                })
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.into_iter().map(renamed).collect()),
        other => other,
    }
}

/// The whole document.
pub fn document() -> Value {
    let mut types = Types::default();
    let error = types.add(schemars::schema_for!(ErrorBody).to_value());
    let mut paths = Map::new();
    let mut put = |path: &str, method: &Method, operation: Value| {
        let entry = paths.entry(path).or_insert_with(|| json!({}));
        entry[method.as_str().to_ascii_lowercase()] = operation;
    };
    for verb in verbs() {
        put(verb.path, &verb.method, of_verb(verb, &mut types));
    }
    for call in service_calls() {
        put(call.path, &call.method, of_call(call, &mut types));
    }
    for (path, method, operation) in streams(&mut types) {
        put(path, &method, operation);
    }
    for (path, operation) in probes() {
        put(path, &Method::GET, operation);
    }
    let codes: Vec<String> = ErrorCode::ALL
        .iter()
        .map(|code| format!("- `{code}` ({}): {}", code.status().as_u16(), code.hint()))
        .collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "controlplane",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Sessions of browsers, each in a clone of its own. At the Unix socket the peer's credentials are the \
                            login; at the HTTP listener every call but the probes needs a key as a Bearer token. Errors of \
                            actions have browserd's codes.",
        },
        "security": [{ "key": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } },
            "schemas": types.0,
            "responses": {
                "Error": {
                    "description": format!("The call failed:\n{}", codes.join("\n")),
                    "headers": {
                        "Retry-After": { "description": "Seconds to wait before a retry.", "schema": { "type": "integer", "minimum": 1 } },
                    },
                    "content": { "application/json": { "schema": error } },
                },
            },
        },
    })
}

fn operation(name: &str, summary: &str, scope: Option<Scope>) -> Value {
    let scope = scope.map_or_else(String::new, |scope| format!("Needs the scope `{}`.", scope.word()));
    json!({
        "operationId": name,
        "summary": summary,
        "description": scope,
        "responses": { "default": { "$ref": "#/components/responses/Error" } },
    })
}

fn of_verb(verb: &Verb, types: &mut Types) -> Value {
    let mut operation = operation(verb.name, verb.summary, Some(verb.scope));
    parameters(&mut operation, verb.path, &verb.method, (verb.params)(), types);
    if verb.name == "open_session" {
        let header = json!({
            "name": "Idempotency-Key", "in": "header", "required": false,
            "description": "A second open with the same key and parameters answers the same session.",
            "schema": { "type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$" },
        });
        push(&mut operation, header);
    }
    answer(&mut operation, success(verb), "application/json", types.add((verb.result)()));
    operation
}

fn of_call(call: &ServiceCall, types: &mut Types) -> Value {
    let mut operation = operation(call.name, call.summary, call.scope);
    parameters(&mut operation, call.path, &call.method, (call.params)(), types);
    match call.answer {
        Answer::Json(status, schema) => {
            let schema = types.add(schema());
            answer(&mut operation, status, "application/json", schema);
        }
        Answer::Bytes(media_types) => {
            for media_type in media_types {
                answer(
                    &mut operation,
                    StatusCode::OK,
                    media_type,
                    json!({ "type": "string", "contentMediaType": media_type }),
                );
            }
        }
    }
    operation
}

/// Calls whose bodies are bytes.
fn streams(types: &mut Types) -> Vec<(&'static str, Method, Value)> {
    let bytes = || json!({ "type": "string", "contentMediaType": "application/octet-stream" });
    let mut upload =
        operation("put_file_bytes", "Put a file into a session, by its bytes", Some(Scope::Files));
    parameters(&mut upload, FILES, &Method::GET, schemars::schema_for!(FileName).to_value(), types);
    upload["requestBody"] =
        json!({ "required": true, "content": { "application/octet-stream": { "schema": bytes() } } });
    let result =
        verb("put_file").map_or_else(|| json!({ "type": "object" }), |verb| types.add((verb.result)()));
    answer(&mut upload, StatusCode::OK, "application/json", result);
    let mut file = operation("download_bytes", "Read the bytes of a finished download", Some(Scope::Files));
    parameters(&mut file, DOWNLOAD, &Method::GET, schemars::schema_for!(DownloadQuery).to_value(), types);
    answer(&mut file, StatusCode::OK, "application/octet-stream", bytes());
    let path = "/v1/sessions/{session_id}/cdp";
    let mut cdp = operation("cdp", "Raw CDP of a session: a WebSocket", Some(Scope::Cdp));
    parameters(&mut cdp, path, &Method::GET, json!({}), types);
    cdp["responses"]["101"] = json!({ "description": "The WebSocket is open." });
    vec![(FILES, Method::POST, upload), (DOWNLOAD, Method::GET, file), (path, Method::GET, cdp)]
}

fn probes() -> Vec<(&'static str, Value)> {
    let object = || json!({ "type": "object" });
    let probe = |name: &str, summary: &str, media_type: &str, schema: Value| {
        let mut probe = operation(name, summary, None);
        probe["security"] = json!([]);
        answer(&mut probe, StatusCode::OK, media_type, schema);
        probe
    };
    let mut ready = probe("readyz", "Sessions can be opened", "application/json", object());
    answer(&mut ready, StatusCode::SERVICE_UNAVAILABLE, "application/json", object());
    ready["responses"]["503"]["description"] = "A part that the service needs does not work.".into();
    let text = "application/openmetrics-text";
    vec![
        ("/healthz", probe("healthz", "The process serves requests", "application/json", object())),
        ("/readyz", ready),
        (
            "/metrics",
            probe(
                "metrics",
                "Prometheus metrics, for clients on this host",
                text,
                json!({ "type": "string" }),
            ),
        ),
        ("/openapi.json", probe("openapi", "This document", "application/json", object())),
    ]
}

fn push(operation: &mut Value, parameter: Value) {
    match &mut operation["parameters"] {
        Value::Array(list) => list.push(parameter),
        none => *none = json!([parameter]),
    }
}

fn answer(operation: &mut Value, status: StatusCode, media_type: &str, schema: Value) {
    let response = &mut operation["responses"][status.as_str()];
    if response.is_null() {
        *response = json!({ "description": "Done", "content": {} });
    }
    response["content"][media_type] = json!({ "schema": schema });
}

/// The parameters of the path, and those of the call: the body of a POST, the query of others.
fn parameters(operation: &mut Value, path: &str, method: &Method, schema: Value, types: &mut Types) {
    for part in path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')) {
        let schema = match part {
            "session_id" => json!({ "type": "string", "pattern": "^ses_[0-9a-f]{32}$" }),
            "key_id" => json!({ "type": "string", "pattern": "^key_[0-9a-f]{32}$" }),
            "number" => json!({ "type": "integer", "minimum": 1 }),
            _ => json!({ "type": "string", "minLength": 1 }),
        };
        push(operation, json!({ "name": part, "in": "path", "required": true, "schema": schema }));
    }
    if *method == Method::POST {
        let required = schema["required"].as_array().is_some_and(|names| !names.is_empty());
        let schema = types.add(schema);
        operation["requestBody"] =
            json!({ "required": required, "content": { "application/json": { "schema": schema } } });
        return;
    }
    let required = schema["required"].clone();
    let properties = schema["properties"].as_object().cloned().unwrap_or_default();
    // The definitions that the properties refer to.
    types.add(json!({ "$defs": schema.get("$defs").cloned().unwrap_or_else(|| json!({})) }));
    for (name, property) in properties {
        let required = required.as_array().is_some_and(|names| names.contains(&Value::String(name.clone())));
        let property = not_null(types.add(property));
        push(operation, json!({ "name": name, "in": "query", "required": required, "schema": property }));
    }
}

/// A query has no null: a parameter is left out instead.
fn not_null(mut schema: Value) -> Value {
    if let Some(kinds) = schema["type"].as_array() {
        let kinds: Vec<Value> = kinds.iter().filter(|kind| *kind != "null").cloned().collect();
        if let [kind] = kinds.as_slice() {
            schema["type"] = kind.clone();
        }
    } else if let Some([one, null]) = schema["anyOf"].as_array().map(Vec::as_slice)
        && null["type"] == "null"
    {
        return one.clone();
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reference_resolves_and_every_operation_has_its_own_id() {
        fn walk(value: &Value, document: &Value) {
            match value {
                Value::Object(map) => {
                    if let Some(Value::String(reference)) = map.get("$ref") {
                        let pointer = reference.strip_prefix('#').expect("a local reference");
                        assert!(document.pointer(pointer).is_some(), "{reference}");
                    }
                    map.values().for_each(|value| walk(value, document));
                }
                Value::Array(list) => list.iter().for_each(|value| walk(value, document)),
                _ => {}
            }
        }
        let document = document();
        walk(&document, &document);
        let mut ids = std::collections::BTreeSet::new();
        let mut count = 0;
        for methods in document["paths"].as_object().expect("paths").values() {
            for operation in methods.as_object().expect("methods").values() {
                count += 1;
                assert!(
                    ids.insert(operation["operationId"].as_str().expect("an id").to_owned()),
                    "{operation}"
                );
            }
        }
        assert_eq!(count, verbs().len() + service_calls().len() + 3 + 4);
    }
}
