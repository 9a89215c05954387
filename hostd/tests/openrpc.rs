//! The OpenRPC document is whole: everything the types say, and no reference that leads nowhere.

#![allow(clippy::unwrap_used)]

use hostd::api::{ErrorCode, Method, openrpc};
use serde_json::Value;
use std::collections::BTreeSet;

fn visit(value: &Value, look: &mut dyn FnMut(&Value)) {
    look(value);
    match value {
        Value::Array(items) => items.iter().for_each(|item| visit(item, look)),
        Value::Object(fields) => fields.values().for_each(|field| visit(field, look)),
        _ => {}
    }
}

#[test]
fn every_reference_resolves_and_every_schema_is_used() {
    let document = openrpc::document();
    let mut used = BTreeSet::new();
    visit(&document, &mut |value| {
        if let Some(path) = value.get("$ref").and_then(Value::as_str) {
            let target = path.strip_prefix('#').and_then(|path| document.pointer(path));
            assert!(target.is_some(), "{path} leads nowhere");
            used.insert(path.to_owned());
        }
    });
    assert!(used.len() > ErrorCode::ALL.len(), "{used:?}");
    for name in document["components"]["schemas"].as_object().unwrap().keys() {
        // The data of every error; JSON-RPC's envelope refers to it, not the document.
        if name != "ErrorData" {
            assert!(used.contains(&format!("#/components/schemas/{name}")), "{name} is not used");
        }
    }
}

#[test]
fn every_method_is_there_with_typed_parameters_and_result() {
    let document = openrpc::document();
    let methods = document["methods"].as_array().unwrap();
    let names: Vec<&str> = methods.iter().map(|method| method["name"].as_str().unwrap()).collect();
    assert_eq!(names, Method::ALL.map(Method::name));
    for method in methods {
        let name = &method["name"];
        assert_eq!(method["paramStructure"], "by-name", "{name}");
        assert!(method["summary"].as_str().unwrap().len() > 10, "{name}");
        assert!(method["result"]["name"].is_string() && method["result"]["schema"].is_object(), "{name}");
        assert_eq!(method["errors"].as_array().unwrap().len(), ErrorCode::ALL.len(), "{name}");
        for param in method["params"].as_array().unwrap() {
            assert!(param["name"].is_string() && param["required"].is_boolean(), "{name}: {param}");
            assert!(param["description"].is_string() && param["schema"].is_object(), "{name}: {param}");
        }
    }
    let create = &methods[0]["params"];
    assert_eq!((&create[0]["name"], &create[0]["required"]), (&"request_id".into(), &true.into()));
    assert_eq!(create[1]["required"], false, "a tenant is optional");
    let id = document.pointer("/components/schemas/RequestId").unwrap();
    assert!(id["pattern"].as_str().unwrap().starts_with('^'), "words carry their pattern: {id}");
}

#[test]
fn every_error_is_there_with_number_word_and_advice() {
    let document = openrpc::document();
    let errors = document["components"]["errors"].as_object().unwrap();
    assert_eq!(errors.len(), ErrorCode::ALL.len());
    for code in ErrorCode::ALL {
        let error = &errors[code.word()];
        assert_eq!(error["code"], code.number(), "{code}");
        assert!(error["message"].as_str().is_some_and(|text| text.ends_with('.')), "{code}: {error}");
        assert_eq!(error["data"]["code"], code.word());
        assert_eq!(error["data"]["retryable"], code.retryable());
    }
}

#[test]
fn progress_is_documented() {
    let document = openrpc::document();
    let progress = &document["x-notifications"][0];
    assert_eq!(progress["name"], "progress");
    let params: Vec<&str> =
        progress["params"].as_array().unwrap().iter().map(|param| param["name"].as_str().unwrap()).collect();
    assert_eq!(params, ["progress_token", "name", "step", "state", "seconds"]);
}
