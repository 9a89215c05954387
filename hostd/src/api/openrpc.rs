//! The contract as an OpenRPC document, generated from the Rust types.
//!
//! `rpc.discover` returns it, `docs/openrpc.json` is a copy, and the TypeScript types are generated from it.

use super::*;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

/// The whole document.
pub fn document() -> Value {
    // OpenRPC uses JSON Schema draft 7 and keeps shared schemas in `components`.
    let mut settings = SchemaSettings::draft07();
    settings.definitions_path = "/components/schemas".into();
    settings.meta_schema = None;
    let mut schemas = settings.into_generator();

    let methods: Vec<Value> = Method::ALL.into_iter().map(|method| describe(&mut schemas, method)).collect();
    let progress = params::<Progress>(&mut schemas);
    schemas.subschema_for::<ErrorData>();
    json!({
        "openrpc": "1.3.2",
        "info": {
            "title": "hostd",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Creates and destroys disposable browser clones. JSON-RPC 2.0 over a Unix stream socket, \
                one message per line (LF), UTF-8, at most 64 KiB per line by default. Requests on one connection may \
                be pipelined; answers are sent in the order in which the operations end. Parameters are an object; unknown fields, \
                batches and positional parameters are refused.",
            "license": { "name": env!("CARGO_PKG_LICENSE") },
        },
        "servers": [
            { "name": "Linux", "url": "unix:///run/hostd/hostd.sock" },
            { "name": "FreeBSD", "url": "unix:///var/run/hostd/hostd.sock" },
        ],
        "methods": methods,
        "x-notifications": [{
            "name": "progress",
            "summary": "Sent while a request with a progress_token runs: a step began, succeeded or failed.",
            "description": "From hostd to the caller, on the caller's connection, before the answer.",
            "paramStructure": "by-name",
            "params": progress,
        }],
        "components": {
            "schemas": schemas.take_definitions(false),
            "errors": errors(),
        },
    })
}

fn describe(schemas: &mut SchemaGenerator, method: Method) -> Value {
    let (params, result) = match method {
        Method::Create => (params::<CreateParams>(schemas), result::<CreateResult>(schemas)),
        Method::Destroy => (params::<DestroyParams>(schemas), result::<DestroyResult>(schemas)),
        Method::Reap => (params::<ReapParams>(schemas), result::<ReapResult>(schemas)),
        Method::ForceUnmount => {
            (params::<ForceUnmountParams>(schemas), result::<ForceUnmountResult>(schemas))
        }
        Method::List => (params::<ListParams>(schemas), result::<ListResult>(schemas)),
        Method::Status => (params::<StatusParams>(schemas), result::<StatusResult>(schemas)),
        Method::Discover => (
            params::<DiscoverParams>(schemas),
            json!({ "name": "document", "description": "This document.", "schema": { "type": "object" } }),
        ),
    };
    json!({
        "name": method.name(),
        "summary": method.summary(),
        "paramStructure": "by-name",
        "params": params,
        "result": result,
        "errors": ErrorCode::ALL.iter().map(|code| reference("errors", code.word())).collect::<Vec<_>>(),
        "x-mutates": method.mutates(),
    })
}

/// The fields of a parameter type as content descriptors.
fn params<T: JsonSchema>(schemas: &mut SchemaGenerator) -> Value {
    let schema: Schema = T::json_schema(schemas);
    let required: Vec<&Value> =
        schema.get("required").and_then(Value::as_array).into_iter().flatten().collect();
    let fields = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
    fields
        .map(|(name, field)| {
            let mut field = field.clone();
            let description = field.as_object_mut().and_then(|field| field.remove("description"));
            json!({
                "name": name,
                "description": description,
                "required": required.iter().any(|required| *required == name),
                "schema": field,
            })
        })
        .collect()
}

fn result<T: JsonSchema>(schemas: &mut SchemaGenerator) -> Value {
    let schema = schemas.subschema_for::<T>();
    json!({ "name": T::schema_name(), "schema": schema })
}

/// Each error code with its JSON-RPC number, name and retry advice.
fn errors() -> Map<String, Value> {
    let schema = schemars::schema_for!(ErrorCode).to_value();
    let meaning = |code: &ErrorCode| {
        let words = schema["oneOf"].as_array().into_iter().flatten();
        words.filter(|word| word["const"] == code.word()).map(|word| word["description"].clone()).next()
    };
    let describe = |code: &ErrorCode| {
        let error = json!({
            "code": code.number(),
            "message": meaning(code),
            "data": { "code": code.word(), "retryable": code.retryable() },
        });
        (code.word().to_owned(), error)
    };
    ErrorCode::ALL.iter().map(describe).collect()
}

fn reference(kind: &str, name: &str) -> Value {
    json!({ "$ref": format!("#/components/{kind}/{name}") })
}
