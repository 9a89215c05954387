//! Parameters of a call: the JSON body of a POST, or the query.

use crate::config::HttpConfig;
use crate::error::{ApiError, ErrorCode};
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, Query};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::time::Duration;

fn bad(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::BadRequest, message)
}

/// The parts of the path.
pub(crate) async fn path(parts: &mut Parts) -> Result<HashMap<String, String>, ApiError> {
    Path::<HashMap<String, String>>::from_request_parts(parts, &())
        .await
        .map(|Path(path)| path)
        .map_err(|_| bad("the path is not valid UTF-8"))
}

/// The query as its type.
pub(super) async fn query<T: serde::de::DeserializeOwned>(parts: &mut Parts) -> Result<T, ApiError> {
    Query::<T>::from_request_parts(parts, &())
        .await
        .map(|Query(query)| query)
        .map_err(|_| bad("the query is not valid; /openapi.json describes it"))
}

/// The parameters of a call: of a POST its body, otherwise its query read by the schema.
pub(super) async fn read(
    parts: &mut Parts,
    body: Body,
    schema: fn() -> Value,
    http: &HttpConfig,
) -> Result<Box<RawValue>, ApiError> {
    let body = read_body(body, http).await?;
    let query = Query::<Vec<(String, String)>>::from_request_parts(parts, &())
        .await
        .map(|Query(query)| query)
        .map_err(|_| bad("the query is not valid"))?;
    if parts.method == Method::POST {
        if !query.is_empty() {
            return Err(bad("the parameters of this call are its JSON body; its path has no query"));
        }
        return json_body(&parts.headers, body);
    }
    if !body.is_empty() {
        return Err(bad("this call has no body; its parameters are the query"));
    }
    let object = from_query(query, &schema())?;
    Ok(serde_json::value::to_raw_value(&object).expect("JSON"))
}

async fn read_body(body: Body, http: &HttpConfig) -> Result<Vec<u8>, ApiError> {
    let limit = http.max_body_bytes;
    let collected = Limited::new(body, usize::try_from(limit).unwrap_or(usize::MAX)).collect();
    match tokio::time::timeout(Duration::from_secs(http.client_timeout_seconds), collected).await {
        Ok(Ok(body)) => Ok(body.to_bytes().into()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let message = format!("the body is longer than {limit} bytes (http.max_body_bytes)");
            Err(ApiError::new(ErrorCode::RequestTooLarge, message))
        }
        Ok(Err(_)) => Err(bad("the body is incomplete")),
        Err(_) => Err(ApiError::new(ErrorCode::RequestTimeout, "the body did not arrive in time")),
    }
}

fn json_body(headers: &HeaderMap, body: Vec<u8>) -> Result<Box<RawValue>, ApiError> {
    if body.is_empty() {
        return Ok(RawValue::from_string("{}".into()).expect("JSON"));
    }
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        return Err(ApiError::new(
            ErrorCode::UnsupportedMediaType,
            "the Content-Type is not application/json",
        ));
    }
    let text = String::from_utf8(body).map_err(|_| bad("the body is not UTF-8"))?;
    if !text.trim_start().starts_with('{') {
        return Err(bad("the body is not a JSON object"));
    }
    // serde's messages can repeat parts of the body, so only the position is shown.
    RawValue::from_string(text).map_err(|error| {
        bad(format!("the body is not JSON: line {}, column {}", error.line(), error.column()))
    })
}

/// The query as an object. Numbers and booleans are what the schema says.
fn from_query(query: Vec<(String, String)>, schema: &Value) -> Result<Map<String, Value>, ApiError> {
    let mut object = Map::new();
    for (name, text) in query {
        let kind = &schema["properties"][&name]["type"];
        let is = |word: &str| {
            kind == word || kind.as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == word))
        };
        let value = if is("integer") || is("boolean") || is("number") {
            match serde_json::from_str::<Value>(&text) {
                Ok(value @ (Value::Number(_) | Value::Bool(_))) => value,
                _ => return Err(bad(format!("the parameter {name:?} is not a valid value"))),
            }
        } else {
            Value::String(text)
        };
        if object.insert(name.clone(), value).is_some() {
            return Err(bad(format!("the parameter {name:?} is repeated")));
        }
    }
    Ok(object)
}

/// Parameters as their type.
pub(super) fn parse<T: serde::de::DeserializeOwned>(params: &RawValue) -> Result<T, ApiError> {
    serde_json::from_str(params.get()).map_err(|error| {
        // A message names the key and what was expected; the value itself is not repeated.
        let message = error.to_string();
        let message = message.split(" at line ").next().unwrap_or_default();
        bad(format!("the parameters are not valid: {message}"))
    })
}
