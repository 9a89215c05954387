//! The TypeScript client: its types and its table of operations are made from the OpenAPI document.

use crate::rig::{Rig, repository};
use serde_json::Value;
use std::fmt::Write;
use std::process::Command;

const HEAD: &str = "// Generated from docs/controlplane-openapi.json; do not edit.\n\
                    // UPDATE_DOCS=1 cargo test -p controlplane --test surfaces documents\n";

/// Operations with a JSON body or none; the client does not carry streams and WebSockets.
fn operations(document: &Value) -> Vec<(&str, String, &Value)> {
    let mut all = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let streams = operation["requestBody"]["content"]["application/octet-stream"].is_object();
            let socket = operation["responses"]["101"].is_object();
            if !streams && !socket {
                all.push((path.as_str(), method.to_ascii_uppercase(), operation));
            }
        }
    }
    all
}

fn success(operation: &Value) -> &Value {
    let responses = &operation["responses"];
    let status = ["200", "201"].into_iter().find(|status| responses[status].is_object()).expect("a success");
    &responses[status]["content"]
}

/// What the client needs to know of each operation when it runs.
pub(crate) fn table(document: &Value) -> String {
    let mut text = format!("{HEAD}export const operations = {{\n");
    for (path, method, operation) in operations(document) {
        let parts: Vec<&str> =
            path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).collect();
        let answer = if success(operation)["application/json"].is_object() { "json" } else { "bytes" };
        let name = operation["operationId"].as_str().unwrap();
        let row = serde_json::json!([method, path, parts, answer]);
        let _ = writeln!(text, "  {name}: {row},");
    }
    text + "};\n"
}

/// The types of everything that crosses the API.
pub(crate) fn contract(document: &Value) -> String {
    let mut text = HEAD.to_owned();
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        let doc = schema["description"].as_str().unwrap_or(name).replace('\n', " ");
        let _ = writeln!(text, "\n/** {doc} */\nexport type {name} = {};", kind(schema, 0));
    }
    text += "\n/** Every operation: its parameters and its result. */\nexport interface Operations {\n";
    for (_, _, operation) in operations(document) {
        let mut params = Vec::new();
        let body = &operation["requestBody"]["content"]["application/json"]["schema"];
        if body.is_object() {
            params.push(kind(body, 1));
        }
        let given = operation["parameters"].as_array().into_iter().flatten();
        let fields: Vec<String> = given
            .filter(|parameter| parameter["in"] != "header")
            .map(|parameter| {
                let optional = if parameter["required"] == true { "" } else { "?" };
                format!(
                    "{}{optional}: {}",
                    parameter["name"].as_str().unwrap(),
                    kind(&parameter["schema"], 1)
                )
            })
            .collect();
        if !fields.is_empty() || params.is_empty() {
            params.push(format!("{{ {} }}", fields.join("; ")));
        }
        let result = &success(operation)["application/json"]["schema"];
        let result = if result.is_object() { kind(result, 1) } else { "Uint8Array".to_owned() };
        let _ = writeln!(
            text,
            "  /** {} */\n  {}: {{ params: {}; result: {result} }};",
            operation["summary"].as_str().unwrap(),
            operation["operationId"].as_str().unwrap(),
            params.join(" & ")
        );
    }
    text + "}\n"
}

fn kind(schema: &Value, depth: usize) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        return reference.rsplit('/').next().unwrap().to_owned();
    }
    if let Some(constant) = schema.get("const") {
        return constant.to_string();
    }
    if let Some(values) = schema["enum"].as_array() {
        return values.iter().map(Value::to_string).collect::<Vec<_>>().join(" | ");
    }
    for word in ["oneOf", "anyOf"] {
        if let Some(choices) = schema[word].as_array() {
            return choices.iter().map(|choice| kind(choice, depth)).collect::<Vec<_>>().join(" | ");
        }
    }
    if let Some(all) = schema["allOf"].as_array() {
        return all.iter().map(|part| kind(part, depth)).collect::<Vec<_>>().join(" & ");
    }
    if let Some(kinds) = schema["type"].as_array() {
        let each = kinds.iter().map(|one| {
            let mut single = schema.clone();
            single["type"] = one.clone();
            kind(&single, depth)
        });
        return each.collect::<Vec<_>>().join(" | ");
    }
    match schema["type"].as_str() {
        Some("string") => "string".into(),
        Some("integer" | "number") => "number".into(),
        Some("boolean") => "boolean".into(),
        Some("null") => "null".into(),
        Some("array") => format!("Array<{}>", kind(&schema["items"], depth)),
        Some("object") => object(schema, depth),
        _ => "unknown".into(),
    }
}

fn object(schema: &Value, depth: usize) -> String {
    let Some(fields) = schema["properties"].as_object() else {
        return match &schema["additionalProperties"] {
            Value::Object(_) => {
                format!("Record<string, {}>", kind(&schema["additionalProperties"], depth))
            }
            Value::Bool(false) => "Record<string, never>".into(),
            _ => "Record<string, unknown>".into(),
        };
    };
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let indent = "  ".repeat(depth + 1);
    let mut text = "{\n".to_owned();
    for (name, field) in fields {
        if let Some(doc) = field["description"].as_str() {
            let _ = writeln!(text, "{indent}/** {} */", doc.replace('\n', " "));
        }
        let optional = if required.contains(&name.as_str().into()) { "" } else { "?" };
        let _ = writeln!(text, "{indent}{name}{optional}: {};", kind(field, depth + 1));
    }
    text + &"  ".repeat(depth) + "}"
}

#[test]
fn the_client_works_over_both_transports_and_reports_errors() {
    let rig = Rig::new();
    let (key, _) = rig.key("a", &["read", "write", "cdp"]);
    let script = r#"
import assert from "node:assert/strict";
import { ControlPlane, ApiError } from "./controlplane.mjs";
const [url, key, socket] = process.argv.slice(1);
for (const [index, service] of [new ControlPlane({ url, key }), new ControlPlane({ socket, key })].entries()) {
  const idempotencyKey = `once-${index}`;
  const who = await service.call("whoami");
  assert.equal(who.tenant, "a");
  const session = await service.open({ labels: { by: "node" } }, { idempotencyKey });
  const again = await service.open({ labels: { by: "node" } }, { idempotencyKey });
  assert.equal(again.id, session.id);
  const { sessions } = await service.call("sessions", { limit: 10 });
  assert.ok(sessions.some((other) => other.session_id === session.id));
  const address = await session.cdpAddress({ expires_in_seconds: 60 });
  assert.match(address.cdp_url, /^ws:.*\/cdp\/cpa_/);
  await assert.rejects(session.call("nonsense"), TypeError);
  await assert.rejects(service.call("keys"), (error) => error instanceof ApiError && error.status === 403 && error.code === "forbidden");
  await assert.rejects(service.open({ deadline_seconds: -1 }), (error) => error.code === "bad_request" && error.hint.length > 0);
  const closed = await session.close();
  assert.equal(closed.close_reason, "requested");
  const stop = AbortSignal.abort();
  await assert.rejects(service.call("whoami", {}, { signal: stop }), { name: "AbortError" });
}
console.log("all is well");
"#;
    run(script, &[&format!("http://{}", rig.http), &key, &rig.socket.display().to_string()]);
}

fn run(script: &str, arguments: &[&str]) {
    let mut command = Command::new("node");
    command.args(["--input-type=module", "--eval", script, "--"]).args(arguments);
    let done = command.current_dir(repository().join("controlplane/clients")).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.contains("all is well"), "{said}");
}
