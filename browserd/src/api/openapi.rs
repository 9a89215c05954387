//! The OpenAPI 3.1 document, generated from the table of operations and the types.

use super::error::{ErrorBody, ErrorCode};
use super::operations::{BodyKind, operations};
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

/// The whole document.
pub fn document() -> Value {
    let mut generator = SchemaSettings::draft2020_12()
        .with(|settings| settings.definitions_path = "/components/schemas".into())
        .into_generator();
    let error_schema = generator.subschema_for::<ErrorBody>();
    let mut paths = Map::new();
    for operation in operations() {
        let success = if ["open_tab", "put_file"].contains(&operation.id) { "201" } else { "200" };
        let bytes = || json!({ "application/octet-stream": {} });
        let content = match operation.sends_file {
            true => bytes(),
            false => json!({ "application/json": { "schema": (operation.response_schema)(&mut generator) } }),
        };
        let mut described = json!({
            "operationId": operation.id,
            "summary": operation.summary,
            "responses": {
                success: { "description": "Done", "content": content },
                "default": { "$ref": "#/components/responses/Error" },
            },
        });
        let body = match operation.body {
            BodyKind::None => None,
            BodyKind::Json => {
                Some(json!({ "application/json": { "schema": (operation.request_schema)(&mut generator) } }))
            }
            BodyKind::Bytes => Some(bytes()),
        };
        if let Some(content) = body {
            described["requestBody"] = json!({ "content": content });
        }
        if operation.public {
            described["security"] = json!([]);
        }
        let in_path = operation.variable().map(|(_, name, _)| {
            json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } })
        });
        let in_query = operation.query.iter().map(|(name, required, description)| {
            json!({
                "name": name, "in": "query", "required": required, "description": description,
                "schema": { "type": "string" },
            })
        });
        let parameters: Vec<Value> = in_path.into_iter().chain(in_query).collect();
        if !parameters.is_empty() {
            described["parameters"] = json!(parameters);
        }
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method.as_str().to_ascii_lowercase()] = described;
    }
    let codes: Vec<String> = ErrorCode::ALL
        .iter()
        .map(|code| format!("- `{}` ({}): {}", code.as_str(), code.status().as_u16(), code.hint()))
        .collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "browserd",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Controls the browser of a clone. Every call but the two probes needs the secret, as a Bearer \
                            token or as the first part of the path (/SECRET/v1/tabs). /json/version returns the \
                            WebSocket URL of the raw CDP endpoint for Playwright and Puppeteer.",
        },
        "security": [{ "secret": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": { "secret": { "type": "http", "scheme": "bearer" } },
            "schemas": generator.take_definitions(true),
            "responses": {
                "Error": {
                    "description": format!("The call failed:\n{}", codes.join("\n")),
                    "content": { "application/json": { "schema": error_schema } },
                },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_document_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/browserd-openapi.json");
        let generated = serde_json::to_string_pretty(&document()).unwrap() + "\n";
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, &generated).unwrap();
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == generated,
            "docs/browserd-openapi.json is out of date: run the tests with UPDATE_DOCS=1"
        );
    }

    #[test]
    fn every_reference_resolves() {
        fn walk(value: &Value, document: &Value) {
            match value {
                Value::Object(map) => {
                    if let Some(Value::String(reference)) = map.get("$ref") {
                        let pointer = reference.strip_prefix('#').unwrap();
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
        assert_eq!(document["paths"].as_object().unwrap().len(), 36);
    }
}
